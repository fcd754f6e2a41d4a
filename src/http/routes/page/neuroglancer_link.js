// Links that open volumes in Neuroglancer with axes, position, contrast and layers set.

import { fromStats } from "./value_statistics.js";
import { carriesToken, directory, rebase, root, token } from "./server.js";
import { ITEM_BYTES, isColour, kindOf } from "./volume.js";

const PUBLIC = "https://neuroglancer-demo.appspot.com/";

/** Returns the URL of Neuroglancer: the server's own copy if it has one, otherwise the public one. */
export function viewerBase() {
  return "viewer" in document.querySelector("main").dataset ? new URL("viewer/", root).href : PUBLIC;
}

/** Returns warnings about the link: `blocked` if it cannot work, `tellsToken` if it sends the token to another host. */
export function viewerAdvice() {
  if (viewerBase() !== PUBLIC) return {};
  const loopback = /^(localhost|.*\.localhost|127(\.\d+){3}|\[::1\])$/.test(location.hostname);
  // A page served over https may not load from http, except from the same machine.
  return { blocked: location.protocol === "http:" && !loopback, tellsToken: token !== null || carriesToken };
}

/** Returns true if Neuroglancer can show the volume. */
export function isOpenable(info, volume) {
  if (volume.rank === 0 || volume.dimensions.includes(0) || !volume.dimensions.every(Number.isSafeInteger)) return false;
  if (!Object.hasOwn(ITEM_BYTES, volume.dataType)) return false;
  return Boolean(info.urls.recommended) || info.readable?.neuroglancer === true;
}

/** Returns the Neuroglancer source URL for this volume. */
function sourceOf(info, volume, stats) {
  const recommended = info.urls.recommended?.source;
  if (recommended) {
    const [, scheme, address] = /^(\w+:\/\/)(.*)$/.exec(recommended);
    return `${scheme}${rebase(address, info)}`;
  }
  // Neuroglancer does not support int64. Non-negative values are the same in uint64.
  if (volume.dataType === "int64" && stats && Number(stats.min) >= 0 && info.urls.as) {
    return `n5://${directory("as/gzip,uint64", info.path)}`;
  }
  return `n5://${directory("n5", info.path)}`;
}

const METRES = /^(|Y|Z|E|P|T|G|M|k|h|c|m|u|µ|n|p|f|a|z|y)m$/;
const LONG = { nanometer: "nm", nanometre: "nm", nanometers: "nm", micrometer: "um", micrometre: "um", micrometers: "um",
  micron: "um", microns: "um", millimeter: "mm", millimetre: "mm", millimeters: "mm", meter: "m", metre: "m", second: "s",
  seconds: "s", sec: "s", millisecond: "ms" };

/** Converts a voxel size to Neuroglancer's form, [size, unit]; null if Neuroglancer does not know the unit. */
function scaleOf(resolution, unit) {
  const name = LONG[unit.toLowerCase()] ?? unit.replace("µ", "u");
  if (name === "") return [1, ""];
  if (/^(angstroms?|Å)$/i.test(name)) return [resolution / 10, "nm"];
  return METRES.test(name) || /^[munpk]?s$/.test(name) ? [resolution, name] : null;
}

// Axis names and scales that Neuroglancer accepts. If a link contains any others, Neuroglancer opens empty.
// Source: ng:coordinate_transform.ts, isValidDimensionName.
const NAME = /^[A-Za-z][A-Za-z0-9_]*['^]?$/;
const isScale = (size) => Number.isFinite(size) && size >= 1e-30 && size <= 1e30;

function hasNames(volume) {
  return volume.axes.every((name) => NAME.test(name)) && new Set(volume.axes).size === volume.rank;
}

/** Returns the axes as Neuroglancer's dimensions; null if Neuroglancer would not accept them. */
function spaceOf(volume) {
  if (!hasNames(volume)) return null;
  const known = volume.axes.map((name, axis) => [name, scaleOf(volume.resolution[axis], volume.units[axis])]);
  // If no axis has a unit, Neuroglancer assumes its own units, and the dimensions given here would contradict them.
  if (known.some(([, scale]) => scale === null) || known.every(([, scale]) => scale[1] === "")) return null;
  if (!known.every(([, [size]]) => isScale(size))) return null;
  return Object.fromEntries(known);
}

function isNgff(source, info) {
  return /^zarr[23]?:/.test(source) && info.kind === "multiscale";
}

/** Returns the offset of the volume in voxels. N5 sources are at the origin, regardless of their metadata. */
function offsets({ info, volume, stats }) {
  if (!isNgff(sourceOf(info, volume, stats), info)) return volume.axes.map(() => 0);
  return volume.axes.map((_, axis) => info.multiscale.levels[0].translation[axis] / volume.resolution[axis]);
}

/**
 * Returns the transform that shifts an OME-NGFF pyramid by half a voxel; undefined if it cannot be expressed. OME-NGFF
 * places the centre of the first voxel at the origin, N5 its corner. Without the shift, Neuroglancer shows them half a
 * voxel apart. The shift aligns pyramids with N5 sources. The axis order of Zarr is the reverse of N5's.
 */
function halfVoxel(volume) {
  const space = spaceOf(volume);
  if (!space || volume.units.some((unit) => unit === "")) return undefined;
  const row = (n) => [...volume.axes.map((_, axis) => (axis === n ? 1 : 0)), 0.5];
  return { matrix: volume.axes.map((_, n) => row(n)), outputDimensions: Object.fromEntries(Object.entries(space).reverse()) };
}

function layerOf({ info, volume, stats }, name) {
  const source = { url: sourceOf(info, volume, stats) };
  if (isNgff(source.url, info)) source.transform = halfVoxel(volume);
  if (kindOf(info, volume, stats) === "segmentation") {
    return { type: "segmentation", source, name, tab: "source", selectedAlpha: 0.4 };
  }
  const space = spaceOf(volume);
  // The transform lists the axes in the order of the source, which is N5 order here.
  if (isColour(volume) && source.url.startsWith("n5://")) {
    const names = volume.axes.map((name, axis) => (hasNames(volume) ? name : axis === volume.channel ? "c" : `d${axis + 1}`));
    const dimensions = names.map((name, axis) => [
      axis === volume.channel ? `${name.replace(/['^]$/, "")}^` : name,
      space?.[name] ?? [1, ""],
    ]);
    source.transform = { outputDimensions: Object.fromEntries(dimensions) };
    const shader = "void main() {\n  emitRGB(vec3(toNormalized(getDataValue(0)), toNormalized(getDataValue(1)), toNormalized(getDataValue(2))));\n}\n";
    return { type: "image", source, name, tab: "rendering", shader };
  }
  const layer = { type: "image", source, name, tab: "rendering" };
  layer.shader = "#uicontrol invlerp contrast\nvoid main() {\n  emitGrayscale(contrast());\n}\n";
  const known = fromStats(stats);
  if (known && known.high > known.low && [known.low, known.high, known.min, known.max].every(Number.isFinite)) {
    layer.shaderControls = { contrast: { range: [known.low, known.high], window: [known.min, known.max] } };
  }
  return layer;
}

/** Returns true if several volumes can be opened together: they have the same axes, at least two. */
export function together(volumes) {
  const key = ({ volume }) => volume.axes.join() + volume.units.map((unit) => Boolean(unit)).join();
  return volumes.length > 1 && volumes[0].volume.rank >= 2 && new Set(volumes.map(key)).size === 1;
}

/**
 * Returns Neuroglancer's state for `volumes` ({info, volume, stats}). Segmentations are layered over images. `view` has
 * the `position` in elements and the `elements` per pixel of an axis, as the preview shows them.
 */
export function stateOf(volumes, view = null) {
  const isOver = ({ info, volume, stats }) => kindOf(info, volume, stats) === "segmentation";
  const count = ({ volume }) => volume.dimensions.reduce((a, b) => a * b, 1);
  const images = volumes.filter((one) => !isOver(one)).sort((a, b) => count(b) - count(a));
  const sorted = [...images, ...volumes.filter(isOver)];
  const names = sorted.map(({ info }) => info.path.split("/").pop() || "volume");
  const layers = sorted.map((one, n) => layerOf(one, names[n]));
  // Only the first image is visible. The user can switch on the others.
  layers.filter((layer) => layer.type === "image").slice(1).forEach((layer) => (layer.visible = false));
  const state = { layers, layout: sorted[0].volume.axes.length > 2 && !isColour(sorted[0].volume) ? "4panel" : "xy" };
  const { volume } = sorted[0];
  const space = spaceOf(volume);
  if (space && !isColour(volume)) {
    const largest = Math.max(...volume.dimensions.map((n, axis) => n * volume.resolution[axis])) / Math.min(...volume.resolution);
    state.dimensions = space;
    const origin = offsets(sorted[0]);
    const position = volume.dimensions.map((n, axis) => (view ? view.position[axis] + 0.5 : n / 2) + origin[axis]);
    if (position.every(Number.isFinite)) state.position = position;
    if (isScale(largest)) {
      state.crossSectionScale = Math.max(largest / 420, 0.01);
      // Neuroglancer counts in the smallest voxel size.
      const scale = view && (view.elements * volume.resolution[view.axes[0]]) / Math.min(...volume.resolution);
      if (isScale(scale)) state.crossSectionScale = scale;
      state.projectionScale = largest * 1.6;
    }
  }
  state.selectedLayer = { layer: layers[layers.length - 1].name, visible: false };
  return state;
}

/** Returns the link that opens the volumes at a view. For a private volume it contains the token. */
export function linkTo(volumes, view = null) {
  const encoded = encodeURIComponent(JSON.stringify(stateOf(volumes, view))).replace(/%3A/g, ":").replace(/%2C/g, ",").replace(/%2F/g, "/");
  return `${viewerBase()}#!${encoded}`;
}

/** Returns the URL to paste into Neuroglancer's source field. */
export function sourceText(info, volume, stats) {
  return sourceOf(info, volume, stats);
}

