// The volume that a dataset or pyramid shows: axes, levels, and the part of a level that a plane needs.

import { encodePath, infoOf, join } from "./server.js";

/** Maximum number of elements in one request. */
const PLANE_ELEMENTS = 1 << 20;

// Neuroglancer's names for unnamed axes.
const AXES = ["x", "y", "z", "t", "c"];
const SPATIAL = ["x", "y", "z"];
// Line breaks and invisible characters. A stored axis name may contain any character.
const ILLEGIBLE = /[\p{C}\p{Zl}\p{Zp}]/u;
const CHANNEL = /^(c|c'|c\^|ch|channel|channels)$/i;

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
  const unnamed = (axis) => AXES[axis] ?? `d${axis + 1}`;
  const axes = Array.from({ length: rank }, (_, axis) => {
    const name = info.axes?.[axis] || finest.axes?.[axis] || unnamed(axis);
    return ILLEGIBLE.test(name) ? `d${axis + 1}` : name;
  });
  return {
    path: info.path,
    finest,
    rank,
    axes,
    dataType: finest.data_type,
    dimensions: finest.dimensions,
    resolution: info.resolution ?? finest.resolution ?? Array(rank).fill(1),
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
  const [x, y, z] = spatial.length ? spatial : [...volume.axes.keys()];
  if (x === undefined) return [];
  if (y === undefined) return [[x, null]];
  if (z === undefined) return [[x, y]];
  return [[x, y], [z, y], [x, z]];
}

/** Returns the length of each axis on the screen in arbitrary units, proportional to physical size if units agree. */
export function extents(volume) {
  const shown = [...new Set(planesOf(volume).flat())].filter((axis) => axis !== null);
  const same = new Set(shown.map((axis) => volume.units[axis])).size === 1;
  const lengths = volume.dimensions.map((n, axis) => Math.max(n, 1) * (same ? volume.resolution[axis] || 1 : 1));
  const longest = Math.max(...shown.map((axis) => lengths[axis]));
  return lengths.map((length) => Math.max(length, longest / 10));
}

/** Returns the index along `axis` of a level that contains the voxel `position` of the finest level. */
function indexAt(level, axis, position) {
  return Math.min(level.dimensions[axis] - 1, Math.max(0, Math.floor(position[axis] / level.factors[axis])));
}

/** Returns the displayed part [start, length] of an axis of `n` voxels around `at`, in steps of half its length. */
function part(n, at, zoom) {
  const length = Math.max(Math.min(n, 4), Math.ceil(n / zoom));
  const half = length / 2;
  const from = Math.round(Math.round(at / half) * half - half);
  return [Math.min(Math.max(from, 0), n - length), length];
}

/**
 * Returns the request for a plane through `position` (voxels of the finest level) that is `pixels` [width, height] on
 * the screen. It uses the coarsest level that still has about that many voxels, with a step if the level has many more.
 * `coarser` selects a level that many places coarser. `zoom` shows the fraction 1/`zoom` of each axis, around `centre`.
 * The `box` of the result is the displayed range along the two axes, in voxels of the finest level.
 */
export function cut(volume, [right, down], position, pixels, colour, { coarser = 0, zoom = 1, centre = position } = {}) {
  const shown = [[right, pixels[0]], [down, pixels[1]]].filter(([axis]) => axis !== null);
  const parts = new Map(shown.map(([axis]) => [axis, part(volume.dimensions[axis], centre[axis], zoom)]));
  const enough = volume.levels.findLastIndex((level) =>
    shown.every(([axis, wanted]) => Math.min(parts.get(axis)[1] / level.factors[axis], level.dimensions[axis]) >= wanted * 0.9),
  );
  const at = Math.min(Math.max(enough, 0) + coarser, volume.levels.length - 1);
  const level = volume.levels[at];
  const start = volume.axes.map((_, axis) => indexAt(level, axis, position));
  const stop = start.map((n) => n + 1);
  const step = start.map(() => 1);
  for (const [axis, wanted] of shown) {
    const [from, length] = parts.get(axis);
    start[axis] = Math.min(Math.floor(from / level.factors[axis]), level.dimensions[axis] - 1);
    stop[axis] = Math.min(Math.max(Math.ceil((from + length) / level.factors[axis]), start[axis] + 1), level.dimensions[axis]);
    step[axis] = Math.max(1, Math.floor((stop[axis] - start[axis]) / Math.max(wanted, 64)));
  }
  if (colour) [start[volume.channel], stop[volume.channel]] = [0, 3];
  const count = () => start.map((from, axis) => Math.ceil((stop[axis] - from) / step[axis]));
  while (count().reduce((a, b) => a * b, 1) > PLANE_ELEMENTS) {
    const axis = down === null || count()[right] > count()[down] ? right : down;
    step[axis] += 1;
  }
  const shape = count();
  const strides = shape.map((_, axis) => shape.slice(0, axis).reduce((a, b) => a * b, 1));
  const query = `start=${start}&stop=${stop}&step=${step}&format=raw`;
  const box = [right, down].map((axis) => {
    if (axis === null) return [0, 1];
    const from = start[axis] * level.factors[axis];
    return [from, from + shape[axis] * step[axis] * level.factors[axis]];
  });
  return {
    key: `${encodePath(level.path)}?${query}`,
    path: level.path, query, start, stop, step, box, zoom, level: at, last: at === volume.levels.length - 1,
    dataType: volume.dataType,
    width: shape[right], height: down === null ? 1 : shape[down],
    strides: [strides[right], down === null ? 0 : strides[down], colour ? strides[volume.channel] : 0],
  };
}
