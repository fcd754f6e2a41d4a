// Conversion of elements to pixels: grey levels, colours added up, labels, and labels on top of an image.
//
// A picture has typed `data`, `width`, `height` and `strides` [right, down, channel], in elements. A layer is a picture
// with `offset` (index of its first element), `colour` [red, green, blue] from 0 to 255, and `window` [black, white]. Its
// `damaged` areas, [left, right, top, bottom], add nothing to the picture.

import { labelColours } from "./colours.js";

/** Colours of elements that are NaN: diagonal stripes, opaque, as 0xAABBGGRR. */
const STRIPES = [0xff8a3a7c, 0xff4c1f44];

/** Returns f(index of an element), the distance of the element from `low`. It is exact for 64-bit integers. */
function distance(data, low) {
  if (!(data instanceof BigUint64Array || data instanceof BigInt64Array)) {
    const base = Number(low);
    return (n) => data[n] - base;
  }
  const halves = new Uint32Array(data.buffer, data.byteOffset, data.length * 2);
  const upper = data instanceof BigInt64Array ? new Int32Array(data.buffer, data.byteOffset, data.length * 2) : halves;
  const whole = typeof low === "bigint" ? low : BigInt(Math.round(low));
  const [high, rest] = [Number(whole >> 32n), Number(whole & 0xffffffffn)];
  return (n) => (upper[2 * n + 1] - high) * 4294967296 + (halves[2 * n] - rest);
}

/** Returns f(index) with the level of an element: 0 is black, 255 white. NaN stays NaN. */
function levels(data, [low, high]) {
  const width = typeof low === "bigint" || typeof high === "bigint" ? Number(BigInt(high) - BigInt(low)) : high - low;
  const from = distance(data, low);
  if (!(width > 0)) return (n) => (from(n) > 0 ? 255 : from(n) <= 0 ? 0 : NaN);
  const scale = 255 / width;
  if (data.BYTES_PER_ELEMENT > 2 || data.length < 4096) return (n) => from(n) * scale;
  // A table for 8 and 16 bits.
  const count = 1 << (8 * data.BYTES_PER_ELEMENT);
  const signed = data instanceof Int8Array || data instanceof Int16Array ? count / 2 : 0;
  const table = Float32Array.from({ length: count }, (_, n) => Math.min(255, Math.max(0, (n - signed - Number(low)) * scale)));
  return (n) => table[data[n] + signed];
}

function paintGrey({ data, width, height, strides, offset = 0, window }, bytes, words) {
  const level = levels(data, window);
  let n = 0;
  for (let row = 0; row < height; row += 1) {
    for (let column = 0, at = offset + row * strides[1]; column < width; column += 1, n += 1, at += strides[0]) {
      const value = level(at);
      if (value !== value) words[n] = STRIPES[((row + column) >> 1) & 1];
      else {
        // A clamped array rounds values.
        bytes[4 * n] = value;
        bytes[4 * n + 1] = value;
        bytes[4 * n + 2] = value;
        bytes[4 * n + 3] = 255;
      }
    }
  }
}

/** Returns an array with 1 for each pixel in one of the areas. */
function maskOf(areas, width, height) {
  const mask = new Uint8Array(width * height);
  for (const [left, right, top, bottom] of areas) {
    for (let row = top; row < bottom; row += 1) mask.fill(1, row * width + left, row * width + right);
  }
  return mask;
}

function paintColours(layers, bytes, words) {
  const [{ width, height }] = layers;
  const sums = new Float32Array(3 * width * height);
  const missing = new Uint8Array(width * height);
  for (const { data, strides, offset = 0, window, colour, damaged } of layers) {
    const level = levels(data, window);
    const isLeftOut = damaged?.length ? maskOf(damaged, width, height) : null;
    const [red, green, blue] = colour.map((part) => part / 255);
    let n = 0;
    for (let row = 0; row < height; row += 1) {
      for (let column = 0, at = offset + row * strides[1]; column < width; column += 1, n += 1, at += strides[0]) {
        if (isLeftOut?.[n]) continue;
        const value = level(at);
        if (value !== value) {
          missing[n] += 1;
          continue;
        }
        const kept = value < 0 ? 0 : value > 255 ? 255 : value;
        sums[3 * n] += red * kept;
        sums[3 * n + 1] += green * kept;
        sums[3 * n + 2] += blue * kept;
      }
    }
  }
  for (let n = 0; n < missing.length; n += 1) {
    if (missing[n] === layers.length) {
      words[n] = STRIPES[((Math.floor(n / width) + (n % width)) >> 1) & 1];
      continue;
    }
    bytes[4 * n] = sums[3 * n];
    bytes[4 * n + 1] = sums[3 * n + 1];
    bytes[4 * n + 2] = sums[3 * n + 2];
    bytes[4 * n + 3] = 255;
  }
}

/** Paints labels in colours. 0 is transparent. */
function paintLabels({ data, width, height, strides, offset = 0 }, words) {
  const colour = labelColours(data);
  let n = 0;
  for (let row = 0; row < height; row += 1) {
    for (let column = 0, at = offset + row * strides[1]; column < width; column += 1, n += 1, at += strides[0]) words[n] = colour(at);
  }
}

/** Mixes the colours of labels into pixels. `columns` and `rows` hold the place of each pixel in the picture, or -1. */
function mixLabels({ data, strides, columns, rows, opacity }, width, bytes) {
  const colour = labelColours(data);
  rows.forEach((down, row) => {
    if (down < 0) return;
    for (let column = 0; column < width; column += 1) {
      if (columns[column] < 0) continue;
      const mixed = colour(columns[column] * strides[0] + down * strides[1]);
      if (mixed === 0) continue;
      const at = 4 * (row * width + column);
      bytes[at] += ((mixed & 255) - bytes[at]) * opacity;
      bytes[at + 1] += (((mixed >>> 8) & 255) - bytes[at + 1]) * opacity;
      bytes[at + 2] += (((mixed >>> 16) & 255) - bytes[at + 2]) * opacity;
      bytes[at + 3] = Math.max(bytes[at + 3], 255 * opacity);
    }
  });
}

/**
 * Draws pictures of the same size into a canvas, one pixel per element. `kind` is `segmentation`, which shows the first
 * layer as labels, or `image`, which adds the colours of all layers. `labels`, if given, are mixed in.
 */
export function drawLayers(canvas, { width, height }, kind, layers, labels = null) {
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  if (width === 0 || height === 0) return;
  const drawn = new ImageData(width, height);
  const bytes = drawn.data;
  const words = new Uint32Array(bytes.buffer);
  const isGrey = layers.length === 1 && layers[0].colour?.every((part) => part === 255) !== false;
  if (layers.length === 0) words.fill(0xff000000);
  else if (kind === "segmentation") paintLabels(layers[0], words);
  else if (isGrey) paintGrey(layers[0], bytes, words);
  else paintColours(layers, bytes, words);
  if (labels) mixLabels(labels, width, bytes);
  canvas.getContext("2d").putImageData(drawn, 0, 0);
}
