// Thumbnails of volumes for the listing, for volumes whose thumbnail is cheap to make.

import { h } from "./dom.js";
import { drawPlain } from "./pixels.js";
import { readPart } from "./planes.js";
import { measure } from "./value_statistics.js";
import { ITEM_BYTES, extents, isColour, kindOf, planesOf, volumeOf, wholePlane } from "./volume.js";

/** Length of the longest side, in CSS pixels. */
const SIDE = 56;

/** Maximum number of bytes that the server decodes for one thumbnail. */
const DECODED_BYTES = 8 << 20;

/** Returns the decoded size in bytes of the blocks that a plane intersects. */
function decodedBytes(level, axes) {
  const blocks = axes.reduce((product, axis) => product * (axis === null ? 1 : level.info.grid[axis]), 1);
  return blocks * level.info.block_size.reduce((a, b) => a * b, ITEM_BYTES[level.info.data_type]);
}

/** Builds a canvas with the thumbnail; null if there is nothing to show or it is too expensive. */
export async function thumbnail(info) {
  if (info.kind !== "dataset" && info.kind !== "multiscale") return null;
  const volume = await volumeOf(info);
  if (!volume || !Object.hasOwn(ITEM_BYTES, volume.dataType) || volume.dimensions.includes(0)) return null;
  const [axes] = planesOf(volume);
  if (!axes || axes[1] === null || !volume.dimensions.every(Number.isSafeInteger)) return null;
  const lengths = axes.map((axis) => extents(volume)[axis]);
  const sides = lengths.map((length) => Math.max(8, Math.round((SIDE * length) / Math.max(...lengths))));
  const position = volume.dimensions.map((n) => Math.floor((n - 1) / 2));
  const colour = isColour(volume);
  const request = wholePlane(volume, axes, position, sides.map((side) => side * 2), colour);
  if (decodedBytes(request.level, axes) > DECODED_BYTES) return null;
  const plane = await readPart(request);
  const measured = measure([plane]);
  if (!measured) return null;
  const window = colour ? [0, 255] : measured.high > measured.low ? [measured.low, measured.high] : [measured.min, measured.max];
  const canvas = h("canvas", {});
  drawPlain(canvas, plane, kindOf(info, volume, null), window);
  [canvas.style.width, canvas.style.height] = sides.map((side) => `${side}px`);
  return canvas;
}
