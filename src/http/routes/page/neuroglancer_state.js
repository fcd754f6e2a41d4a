// Neuroglancer's state for volumes: dimensions, position and scale of the first view, and layers.

import { SHOWN_AT_ONCE, channelsOf, isTrueColour } from "./channels.js";
import { carriesToken, directory, rebase, token } from "./server.js";
import { fromStats } from "./value_statistics.js";
import { kindOf, shownAxes } from "./volume.js";

/** True if a state contains this page's token, because the addresses of sources do. */
export const tellsToken = token !== null || carriesToken;

/** Height of Neuroglancer's bar of layers, in pixels. */
const BAR = 40;
/** Share of a panel that the volume fills in the first view. */
const FILLED = 0.92;

/** Returns the Neuroglancer source URL for a volume. */
export function sourceOf(info, volume, stats) {
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

const PREFIXES = { Y: 24, Z: 21, E: 18, P: 15, T: 12, G: 9, M: 6, k: 3, h: 2, "": 0, c: -2, m: -3, u: -6, n: -9, p: -12, f: -15, a: -18, z: -21, y: -24 };
const LONG = { nanometer: "nm", nanometre: "nm", nanometers: "nm", micrometer: "um", micrometre: "um", micrometers: "um",
  micron: "um", microns: "um", millimeter: "mm", millimetre: "mm", millimeters: "mm", meter: "m", metre: "m", second: "s",
  seconds: "s", sec: "s", millisecond: "ms" };
const UNIT = /^([YZEPTGMkhcmunpfazy]?)(m|s)$/;

// Axis names and scales that Neuroglancer accepts. If a link contains any others, Neuroglancer opens empty.
// Source: ng:coordinate_transform.ts, isValidDimensionName.
const NAME = /^[A-Za-z][A-Za-z0-9_]*['^]?$/;
const isScale = (size) => Number.isFinite(size) && size >= 1e-30 && size <= 1e30;

/** Converts a voxel size to Neuroglancer's form, [size, unit]. The unit is empty if Neuroglancer does not know it. */
function scaleOf(size, unit) {
  const name = LONG[unit.toLowerCase()] ?? unit.replace("µ", "u");
  const [own, known] = /^(angstroms?|Å)$/i.test(name) ? [size / 10, "nm"] : [size, UNIT.test(name) ? name : ""];
  return isScale(own) ? [own, known] : [1, known];
}

/** Returns the size in metres or seconds. */
function inBaseUnits([size, unit]) {
  const [, prefix = ""] = UNIT.exec(unit) ?? [];
  return size * 10 ** PREFIXES[prefix];
}

function hasNames(volume) {
  return volume.axes.every((name) => NAME.test(name)) && new Set(volume.axes.map((name) => name.replace(/['^]$/, ""))).size === volume.rank;
}

function isNgff(source, info) {
  return /^zarr[23]?:/.test(source) && info.kind === "multiscale";
}

/** Returns the axes that panels show: at most three, which are neither time nor channels. */
function displayed(volume) {
  const isTime = (axis) => /^(t|time|timepoints?|frames?)$/i.test(volume.axes[axis]) || /s$/.test(scaleOf(1, volume.units[axis])[1]);
  const shown = shownAxes(volume);
  const spatial = shown.filter((axis) => !isTime(axis));
  return spatial.length > 0 ? spatial : shown;
}

/**
 * Returns the axes as Neuroglancer's dimensions, [name, [size, unit]] in N5 order; null if Neuroglancer would not
 * accept them. `suffix` marks the channel axis: `'` for one position per layer, `^` for several values per position.
 *
 * Panels compare the sizes of the axes that they show. Unless all of these are known in the same unit, elements count.
 */
function spaceOf(volume, suffix = "") {
  if (!hasNames(volume)) return null;
  const shown = displayed(volume);
  const scales = volume.axes.map((_, axis) => scaleOf(volume.voxelSize[axis] ?? 1, volume.units[axis]));
  const areKnown = shown.every((axis) => volume.voxelSize[axis] !== null);
  const kinds = new Set(shown.map((axis) => scales[axis][1].slice(-1)));
  const areComparable = areKnown && kinds.size === 1;
  return volume.axes.map((name, axis) => {
    const scale = shown.includes(axis) && !areComparable ? [1, ""] : scales[axis];
    return axis === volume.channel ? [`${name.replace(/['^]$/, "")}${suffix}`, [1, ""]] : [name, scale];
  });
}

/** Returns the offset of the volume in voxels. N5 sources are at the origin, regardless of their metadata. */
function offsets(volume, source, info) {
  if (!isNgff(source, info)) return volume.axes.map(() => 0);
  const { translation, resolution } = info.multiscale.levels[0];
  return volume.axes.map((_, axis) => translation[axis] / resolution[axis]);
}

/**
 * Returns the transform from the source's axes to those of the state, one voxel to one voxel. Without it, Neuroglancer
 * would assume nanometres for an N5 source without units. It shifts an OME-NGFF pyramid by half a voxel: OME-NGFF
 * places the centre of the first voxel at the origin, N5 its corner. The axis order of Zarr is the reverse of N5's.
 */
function transformOf(volume, source, info, space) {
  if (!space) return undefined;
  const ngff = isNgff(source, info);
  const order = ngff ? [...volume.axes.keys()].reverse() : [...volume.axes.keys()];
  const row = (n) => [...order.map((_, axis) => (axis === n ? 1 : 0)), ngff ? 0.5 : 0];
  // The names that Neuroglancer gives to the axes of the source.
  const given = (axis) => (ngff && axis === volume.channel ? `${volume.axes[axis]}'` : volume.sourceAxes[axis] ?? volume.axes[axis]);
  return {
    matrix: order.map((_, n) => row(n)),
    outputDimensions: Object.fromEntries(order.map((axis) => space[axis])),
    inputDimensions: Object.fromEntries(order.map((axis) => [given(axis), space[axis][1]])),
  };
}

/** Returns how the channels of an image are shown: as one `colour`, as `layers`, or one at a time. */
function channelMode(info, volume, stats, isAlone) {
  if (volume.channel < 0 || kindOf(info, volume, stats) === "segmentation") return null;
  // Neuroglancer mixes only values of the same block.
  if (isTrueColour(info, volume) && volume.finest.block_size[volume.channel] >= 3) return "colour";
  return isAlone && volume.dimensions[volume.channel] <= SHOWN_AT_ONCE ? "layers" : null;
}

const SUFFIXES = { colour: "^", layers: "'" };

/** Returns the contrast control's range, which is black to white, and the window around it; undefined if unknown. */
function contrastOf(stats, window = null) {
  const known = fromStats(stats);
  const finite = (low, high) => [low, high].every(Number.isFinite) && high > low;
  const range = window ?? (known && finite(known.low, known.high) ? [known.low, known.high] : null);
  if (!range || !finite(...range)) return undefined;
  const around = known && finite(known.min, known.max) ? [Math.min(known.min, range[0]), Math.max(known.max, range[1])] : range;
  return { contrast: { range, window: around } };
}

/** Returns the layers of a volume. `channels` overrides those that metadata describe. */
function layersOf({ info, volume, stats }, name, mode, channels) {
  const url = sourceOf(info, volume, stats);
  const space = spaceOf(volume, SUFFIXES[mode]);
  const source = { url };
  const knowsUnits = volume.units.every((unit, axis) => axis === volume.channel || scaleOf(1, unit)[1] !== "");
  const isPlain = !isNgff(url, info) && mode === null && hasNames(volume) && knowsUnits && volume.channel < 0;
  if (!isPlain) source.transform = transformOf(volume, url, info, space);
  if (kindOf(info, volume, stats) === "segmentation") {
    return [{ type: "segmentation", source, name, tab: "source", selectedAlpha: 0.4 }];
  }
  if (mode === "colour" && space) {
    const shader = "void main() {\n  emitRGB(vec3(toNormalized(getDataValue(0)), toNormalized(getDataValue(1)), toNormalized(getDataValue(2))));\n}\n";
    return [{ type: "image", source, name, tab: "rendering", shader }];
  }
  if (mode === "layers" && space) {
    const [dimension] = space[volume.channel];
    const names = new Set();
    return channels.map(({ index, name: given, colour, visible, window }) => {
      const unique = names.has(given) ? `${given} (${index})` : given;
      names.add(unique);
      return {
        type: "image", source, name: unique, tab: "rendering", visible: visible !== false, opacity: 1, blend: "additive",
        localDimensions: { [dimension]: [1, ""] }, localPosition: [index + 0.5],
        shader: `#uicontrol invlerp contrast\n#uicontrol vec3 colour color(default="${colour}")\nvoid main() {\n  emitRGB(contrast() * colour);\n}\n`,
        shaderControls: contrastOf(stats, window ?? (isTrueColour(info, volume) ? [0, 255] : null)),
      };
    });
  }
  const shader = "#uicontrol invlerp contrast\nvoid main() {\n  emitGrayscale(contrast());\n}\n";
  const window = channels.length === 1 ? channels[0].window : null;
  return [{ type: "image", source, name, tab: "rendering", shader, shaderControls: contrastOf(stats, window) }];
}

/**
 * Returns the scale of the panels at which they show the whole volume, in sizes of the smallest element per pixel, and
 * the height of the 3-D panel in such sizes.
 */
function frameOf(volume, shown, sizes, layout) {
  const smallest = Math.min(...shown.map((axis) => sizes[axis]));
  const lengths = shown.map((axis) => (Math.max(volume.dimensions[axis], 1) * sizes[axis]) / smallest);
  const parts = layout === "4panel" ? 2 : 1;
  const [width, height] = [innerWidth / parts, (innerHeight - BAR) / parts].map((pixels) => Math.max(pixels, 100) * FILLED);
  const [x, y = 1, z = 1] = lengths;
  const panels = layout === "4panel" ? [[x, y], [x, z], [z, y]] : [[x, y]];
  const cross = Math.max(...panels.map(([right, down]) => Math.max(right / width, down / height)));
  return { smallest, cross, projection: 1.25 * Math.max(y, z, (x * height) / width, (z * height) / width) };
}

/** Returns true if several volumes can be opened together: they have the same axes, at least two. */
export function together(volumes) {
  const key = ({ volume }) => volume.axes.join() + volume.units.map((unit) => Boolean(unit)).join();
  return volumes.length > 1 && volumes[0].volume.rank >= 2 && new Set(volumes.map(key)).size === 1;
}

/**
 * Returns Neuroglancer's state for `volumes` ({info, volume, stats}). Segmentations are layered over images. The first
 * view shows the whole of the largest, at its middle, and at the first time point. `view` has the `position` in
 * elements and the `zoom`, 1 for the whole, as the preview shows them; with `channels`, their windows and colours.
 */
export function stateOf(volumes, view = null) {
  const isOver = ({ info, volume, stats }) => kindOf(info, volume, stats) === "segmentation";
  const count = ({ volume }) => volume.dimensions.reduce((a, b) => a * b, 1);
  const images = volumes.filter((one) => !isOver(one)).sort((a, b) => count(b) - count(a));
  const sorted = [...images, ...volumes.filter(isOver)];
  const isAlone = volumes.length === 1;
  const modeOf = ({ info, volume, stats }) => channelMode(info, volume, stats, isAlone);
  const layers = sorted.flatMap((one, n) => {
    const name = one.info.path.split("/").pop() || "volume";
    const mode = modeOf(one);
    const own = layersOf(one, name, mode, view?.channels ?? (mode === "layers" ? channelsOf(one.info, one.volume) : []));
    // Of several images, only the first is visible. The user can switch on the others.
    if (n > 0 && !isOver(one)) own.forEach((layer) => (layer.visible = false));
    return own;
  });
  const { info, volume, stats } = sorted[0];
  const shown = displayed(volume);
  const layout = shown.length > 2 ? "4panel" : "xy";
  const state = { layers, layout };
  const url = sourceOf(info, volume, stats);
  const mode = modeOf(sorted[0]);
  const space = spaceOf(volume, SUFFIXES[mode]);
  if (space) {
    // Dimensions that only a layer has are none of the state's.
    const global = [...volume.axes.keys()].filter((axis) => mode === null || axis !== volume.channel);
    const origin = offsets(volume, url, info);
    const middle = volume.dimensions.map((n, axis) => (shown.includes(axis) ? n / 2 : 0.5));
    const position = middle.map((at, axis) => (view ? view.position[axis] + 0.5 : at) + origin[axis]);
    state.dimensions = Object.fromEntries(global.map((axis) => space[axis]));
    if (global.every((axis) => Number.isFinite(position[axis]))) state.position = global.map((axis) => position[axis]);
    state.displayDimensions = shown.map((axis) => space[axis][0]);
    const sizes = space.map(([, scale]) => inBaseUnits(scale));
    const { smallest, cross, projection } = frameOf(volume, shown, sizes, layout);
    const seen = cross / (view?.zoom ?? 1);
    if (isScale(seen)) state.crossSectionScale = seen;
    if (isScale(projection)) state.projectionScale = projection;
  }
  state.selectedLayer = { layer: layers[layers.length - 1].name, visible: false };
  return state;
}
