// The geometry of a plane: which part of the volume its pixels show, and the tiles that this takes.

/** Number of elements along the side of a tile. Tiles follow the borders of blocks where they are about this large. */
const TILE = 320;

/**
 * The part of the volume that a plane shows. `axes` are the axes to the right and down; null stands for no axis. `size`
 * is in CSS pixels, `centre` in elements of the finest level, `scale` in pixels per element along the two axes.
 */
export class Viewport {
  constructor(volume, axes, size, centre, scale) {
    Object.assign(this, { volume, axes, size, scale });
    this.centre = axes.map((axis) => (axis === null ? 0.5 : centre[axis]));
    this.origin = this.centre.map((at, n) => at - size[n] / 2 / scale[n]);
  }

  /** Converts a point of the plane to elements of the finest level. */
  toElements(point) {
    return point.map((pixels, n) => this.origin[n] + pixels / this.scale[n]);
  }

  toPixels(elements) {
    return elements.map((at, n) => (at - this.origin[n]) * this.scale[n]);
  }

  /** Returns the length of the volume along an axis of the plane. */
  length(n) {
    return this.axes[n] === null ? 1 : this.volume.dimensions[this.axes[n]];
  }

  /** Returns the visible range of each axis in elements, with `margin` pixels around it; null if none is visible. */
  visible(margin = 0) {
    const ranges = this.axes.map((_, n) => {
      const from = this.origin[n] - margin / this.scale[n];
      const to = this.origin[n] + (this.size[n] + margin) / this.scale[n];
      return [Math.max(0, from), Math.min(this.length(n), to)];
    });
    return ranges.every(([from, to]) => to > from) ? ranges : null;
  }

  /** Returns the element at a point, one index per plane axis, within the volume. */
  elementAt(point) {
    return this.toElements(point).map((at, n) => Math.min(this.length(n) - 1, Math.max(0, Math.floor(at))));
  }

  contains(point) {
    return this.toElements(point).every((at, n) => at >= 0 && at < this.length(n));
  }
}

/** Returns the largest of the steps 1, 2, 3, 4, 6, 8, 12, … that leaves out at most so many elements. */
function stepFor(elements) {
  if (elements < 2) return 1;
  const power = 2 ** Math.floor(Math.log2(elements));
  return elements >= power * 1.5 ? power * 1.5 : power;
}

/**
 * Returns the level that has about one element per device pixel, and the step along the plane's axes if even that level
 * has many more. A level is too coarse if its elements would be larger than a pixel, except along axes that no level
 * reduces. `forced` is the number of a level to use instead.
 */
export function sampling(viewport, density, forced = null) {
  const { volume, axes, scale } = viewport;
  const pixels = scale.map((one) => one * density);
  const isFine = (level) =>
    axes.every((axis, n) => axis === null || level.factors[axis] <= 1.01 || pixels[n] * level.factors[axis] <= 1.1);
  const number = forced ?? Math.max(0, volume.levels.findLastIndex(isFine));
  const { factors } = volume.levels[number];
  const step = axes.map((axis, n) => {
    if (axis === null) return 1;
    return stepFor(1.05 / (pixels[n] * factors[axis]));
  });
  return { number, step };
}

function gcd(a, b) {
  return b === 0 ? a : gcd(b, a % b);
}

/** Returns the length of tiles along an axis of a level: a multiple of the step, and of the blocks if they are small. */
function tileLength(level, axis, step) {
  const wanted = TILE * step;
  const block = level.info.block_size?.[axis] ?? 1;
  const common = (block / gcd(block, step)) * step;
  return common <= 2 * wanted ? Math.max(1, Math.round(wanted / common)) * common : wanted;
}

/**
 * Returns the tiles that cover the visible part, those in the middle first: `start` and `stop` in elements of the level
 * along the plane's axes, `step`, and `box` in elements of the finest level.
 */
export function tilesOf(viewport, { number, step }, margin = 0) {
  const { volume, axes, centre } = viewport;
  const level = volume.levels[number];
  const ranges = viewport.visible(margin);
  if (!ranges) return [];
  const parts = axes.map((axis, n) => {
    if (axis === null) return [[0, 1]];
    const length = tileLength(level, axis, step[n]);
    const count = level.dimensions[axis];
    // A short rest belongs to the last tile.
    const last = Math.max(1, Math.floor(count / length + 2 / 3)) - 1;
    const [first, end] = ranges[n].map((at) => at / level.factors[axis] / length);
    const found = [];
    for (let tile = Math.min(last, Math.floor(first)); tile <= last && (tile < end || found.length === 0); tile += 1) {
      found.push([tile * length, tile === last ? count : (tile + 1) * length]);
    }
    return found;
  });
  const tiles = parts[1].flatMap(([top, bottom]) => parts[0].map(([left, right]) => {
    const start = [left, top];
    const stop = [right, bottom];
    const box = axes.map((axis, n) => {
      if (axis === null) return [0, 1];
      const count = Math.ceil((stop[n] - start[n]) / step[n]);
      return [start[n] * level.factors[axis], (start[n] + count * step[n]) * level.factors[axis]];
    });
    return { number, step, start, stop, box };
  }));
  const distance = ({ box }) => Math.hypot(...box.map(([from, to], n) => ((from + to) / 2 - centre[n]) * viewport.scale[n]));
  return tiles.sort((a, b) => distance(a) - distance(b));
}

/** Returns the number of bytes that the server decodes for the visible part of a plane. */
export function cost(viewport, { number }) {
  const { volume, axes } = viewport;
  const { info, factors, dimensions } = volume.levels[number];
  const ranges = viewport.visible();
  if (!ranges || !info.block_size) return 0;
  // Of uncompressed blocks only the plane itself is read.
  const isRaw = info.compression?.type === "raw";
  return info.block_size.reduce((product, block, axis) => {
    const n = axes.indexOf(axis);
    if (n < 0) return product * (isRaw ? 1 : Math.min(block, dimensions[axis]));
    const [from, to] = ranges[n].map((at) => at / factors[axis] / block);
    return product * Math.min((Math.ceil(to) - Math.floor(from)) * block, dimensions[axis]);
  }, volume.itemBytes);
}

/** Returns a round length of a scale bar, at most `most`: 1, 2 or 5 times a power of ten. */
export function roundLength(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  return [5, 2, 1].map((n) => n * power).find((length) => length <= most) ?? power;
}
