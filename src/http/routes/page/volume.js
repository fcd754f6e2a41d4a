// The volume that a dataset or pyramid shows: axes, levels, and the part of a level that a plane needs.

import { infoOf, join } from "./server.js";

// Names of the first axes where metadata name none. Further ones may be time, channels or anything else.
const AXES = ["x", "y", "z"];
// The names that Neuroglancer and the views of this server give to unnamed axes.
const SOURCE_AXES = ["x", "y", "z", "t", "c"];
const SPATIAL = ["x", "y", "z"];
// Line breaks and invisible characters. A stored axis name may contain any character.
const ILLEGIBLE = /[\p{C}\p{Zl}\p{Zp}]/u;
const CHANNEL = /^(c|c'|c\^|ch|channel|channels)$/i;

/** Largest ratio of two sides of a voxel that the planes show. */
const MOST_ANISOTROPY = 1000;

export const ITEM_BYTES = {
  uint8: 1, int8: 1, uint16: 2, int16: 2, uint32: 4, int32: 4, float32: 4, uint64: 8, int64: 8, float64: 8,
};

/**
 * Returns the volume that `info` describes; null if there is nothing to show. `levels` has the finest level first, each
 * with `path`, `info`, `dimensions` and `factors`. Lists have one entry per axis, in N5 axis order.
 */
export async function volumeOf(info) {
  let levels = [{ path: info.path, factors: null, info }];
  if (info.kind === "multiscale") {
    const described = info.multiscale.levels.map(async (level) => {
      const path = join(info.path, level.path);
      return { path, factors: level.factors, info: await infoOf(path) };
    });
    levels = (await Promise.allSettled(described)).flatMap((level) => (level.status === "fulfilled" ? [level.value] : []));
    levels = levels.filter((level) => level.info.kind === "dataset");
  }
  if (levels.length === 0 || levels[0].info.kind !== "dataset") return null;
  const finest = levels[0].info;
  const rank = finest.dimensions.length;
  const named = (defaults) => Array.from({ length: rank }, (_, axis) => {
    const name = info.axes?.[axis] || finest.axes?.[axis] || (defaults[axis] ?? `d${axis + 1}`);
    return ILLEGIBLE.test(name) ? `d${axis + 1}` : name;
  });
  const given = info.resolution ?? finest.resolution;
  return {
    path: info.path,
    finest,
    rank,
    axes: named(AXES),
    sourceAxes: named(SOURCE_AXES),
    hasNames: Boolean(info.axes ?? finest.axes),
    dataType: finest.data_type,
    itemBytes: ITEM_BYTES[finest.data_type] ?? 1,
    dimensions: finest.dimensions,
    // Null where the size is not given, or is none.
    voxelSize: Array.from({ length: rank }, (_, axis) => (isSize(given?.[axis]) ? given[axis] : null)),
    // Neuroglancer and OME-NGFF count elements where the size is not given.
    resolution: Array.from({ length: rank }, (_, axis) => (isSize(given?.[axis]) ? given[axis] : 1)),
    units: (info.units ?? finest.units ?? Array(rank).fill("")).map((unit) => unit ?? ""),
    levels: levels.map((level) => ({
      path: level.path,
      info: level.info,
      dimensions: level.info.dimensions,
      factors: level.factors ?? Array(rank).fill(1),
    })),
    channel: (info.axes ?? finest.axes ?? []).findIndex((name) => CHANNEL.test(name ?? "")),
  };
}

/** Returns true if a number can be the size of a voxel. */
function isSize(size) {
  return Number.isFinite(size) && size > 0;
}

/** Returns true if a picture of the volume can be drawn, here and in Neuroglancer. */
export function isViewable({ rank, dataType, dimensions }) {
  return rank > 0 && Object.hasOwn(ITEM_BYTES, dataType) && !dimensions.includes(0) && dimensions.every(Number.isSafeInteger);
}

/** Returns true if the volume is a colour image: three channels of 8 bits. */
export function isColour(volume) {
  return volume.channel >= 0 && volume.dataType === "uint8" && volume.dimensions[volume.channel] === 3;
}

const LABEL_NAME = /(label|seg|mask|annotation|supervoxel|fragment|neuron|nuclei|instance|(^|[^a-z])(gt|ids?)([^a-z]|$))/i;

/** Returns `image` or `segmentation`, as given by the server or else derived from name, type and statistics. */
export function kindOf(info, volume, stats) {
  if (info.volume) return info.volume;
  if (volume.dataType.startsWith("float") || isColour(volume)) return "image";
  const { attributes } = info;
  if (attributes?.painteraData?.type === "label" || "maxId" in (attributes ?? {})) return "segmentation";
  if (LABEL_NAME.test(info.path)) return "segmentation";
  if (stats?.labels && volume.dataType.endsWith("64")) return "segmentation";
  return volume.dataType === "uint64" ? "segmentation" : "image";
}

/** Returns the axes of at most three planes, each as [right, down]; `null` stands for no axis. */
export function planesOf(volume) {
  const others = [...volume.axes.keys()].filter((axis) => axis !== volume.channel);
  const named = SPATIAL.map((name) => volume.axes.findIndex((axis) => axis.toLowerCase() === name)).filter((axis) => axis >= 0);
  const spatial = named.length >= 2 ? named : others.slice(0, 3);
  // Planes along an axis with one element show nothing but a line.
  const long = spatial.filter((axis) => volume.dimensions[axis] > 1);
  const [x, y, z] = long.length ? long : spatial.length ? spatial.slice(0, 2) : [...volume.axes.keys()];
  if (x === undefined) return [];
  if (y === undefined) return [[x, null]];
  if (z === undefined) return [[x, y]];
  return [[x, y], [z, y], [x, z]];
}

/** Returns the axis perpendicular to a plane, or else the first axis that no plane shows and that has several elements. */
export function normalOf(volume, axes) {
  const shown = shownAxes(volume);
  const across = shown.find((axis) => !axes.includes(axis));
  const others = [...volume.axes.keys()].filter((axis) => !shown.includes(axis) && volume.dimensions[axis] > 1);
  return across ?? others.find((axis) => axis !== volume.channel) ?? others[0];
}

/** Returns the axes that planes show. */
export function shownAxes(volume) {
  return [...new Set(planesOf(volume).flat())].filter((axis) => axis !== null);
}

/**
 * Returns the length of an element along each axis on the screen: its physical size if all shown axes have one, in the
 * same unit and of similar length, otherwise 1.
 */
export function spacing(volume) {
  const shown = shownAxes(volume);
  const same = new Set(shown.map((axis) => volume.units[axis])).size <= 1;
  const sizes = shown.map((axis) => volume.voxelSize[axis]);
  const usable = same && sizes.every((size) => size !== null) && Math.max(...sizes) / Math.min(...sizes) <= MOST_ANISOTROPY;
  return volume.dimensions.map((_, axis) => (usable && shown.includes(axis) ? volume.voxelSize[axis] : 1));
}

/** Returns the index along `axis` of a level that contains the voxel `position` of the finest level. */
export function indexAt(level, axis, position) {
  return Math.min(level.dimensions[axis] - 1, Math.max(0, Math.floor(position[axis] / level.factors[axis])));
}
