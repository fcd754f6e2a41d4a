// The tiles that a view needs: those on screen, coarser ones to show meanwhile, and those of the coming planes.

import { partOf } from "./planes.js";
import { cost, sampling, tilesOf } from "./viewport.js";
import { indexAt, normalOf } from "./volume.js";

/** Largest number of bytes that the server decodes for coarse tiles and for the first view. */
export const FIRST_COST = 3 * 2 ** 28;

/** Maximum size of the planes that are fetched with one request in advance, and their maximum number. */
const SLAB_BYTES = 8 << 20;
const SLAB = 16;
/** Number of steps in one direction after which more is fetched: someone holds a key, or turns a wheel. */
const RUN = 4;

export class TilePlan {
  /** `display` says which parts a tile has; `tiles` are those that were fetched. */
  constructor(volume, state, display, tiles) {
    Object.assign(this, { volume, state, display, tiles });
  }

  /**
   * Returns the description of a tile of a plane at a position. `index` overrides the position along the plane's normal,
   * in elements of the level; `count` is the number of planes.
   */
  specOf(plane, tile, group, { position = this.state.position, index = null, count = 1 } = {}) {
    const { volume } = this;
    const level = volume.levels[tile.number];
    const start = volume.axes.map((_, axis) => indexAt(level, axis, position));
    const normal = normalOf(volume, plane.axes);
    if (index !== null) start[normal] = index;
    const stop = start.map((at, axis) => at + (index !== null && axis === normal ? count : 1));
    const step = start.map(() => 1);
    plane.axes.forEach((axis, n) => {
      if (axis !== null) [start[axis], stop[axis], step[axis]] = [tile.start[n], tile.stop[n], tile.step[n]];
    });
    const parts = this.display.parts(level, position).map(({ path, channels, make, optional }) => {
      const box = { start: [...start], stop: [...stop], step };
      if (channels) [box.start[volume.channel], box.stop[volume.channel]] = channels;
      const channel = channels ? volume.channel : null;
      const part = make ? make(box, plane.axes) : partOf({ path, level, dataType: volume.dataType, box, axes: plane.axes, channel });
      return part && { ...part, isOptional: optional };
    });
    const spec = { ...tile, plane, parts, group, normal, key: parts.map((part) => part?.key ?? "").join(" ") };
    // A stack may have nothing at a place: the tile is empty.
    return parts.every((part) => part === null) ? { ...spec, key: `${plane.number} ${tile.number} ${start}/${stop}`, pictures: [] } : spec;
  }

  /**
   * Returns the tiles of the coming planes: slabs, each within a layer of blocks, which the server has just decoded.
   * `direction` is that of the last steps, along the axis `stepped`; `steps` is their number.
   */
  slabsOf(plane, tiles, group, { direction, stepped, steps }) {
    const normal = normalOf(this.volume, plane.axes);
    if (normal === undefined || !tiles.length || navigator.connection?.saveData) return [];
    const level = this.volume.levels[tiles[0].number];
    const depth = level.info.block_size?.[normal] ?? 1;
    const last = level.dimensions[normal];
    const at = indexAt(level, normal, this.state.position);
    const parts = tiles.flatMap((tile) => this.specOf(plane, tile, group).parts);
    if (parts.some((part) => !part || part.of || normal >= part.shape.length)) return [];
    const size = parts.reduce((sum, { shape }) => sum + shape.reduce((a, b) => a * b, this.volume.itemBytes), 0);
    const isStepping = stepped === normal;
    const isRunning = isStepping && steps >= RUN;
    // Someone who only looks gets a quarter.
    const most = Math.floor(Math.min(SLAB, SLAB_BYTES / size) / (isRunning ? 1 : isStepping ? 2 : 4));
    // Decoding a layer of blocks can take longer than many steps.
    const lead = isRunning ? 2 * most : isStepping ? most : most / 2;
    const forward = direction >= 0 || !isStepping;
    const coming = new Set();
    const isHere = (index) => tiles.every((tile) => {
      const { key } = this.specOf(plane, tile, group, { index });
      const slab = this.tiles.slabWith(key);
      if (slab) coming.add(slab);
      return slab || this.tiles.find(key);
    });
    let next = at + (forward ? 1 : -1);
    while (Math.abs(next - at) <= lead && next >= 0 && next < last && isHere(next)) next += forward ? 1 : -1;
    const isFar = Math.abs(next - at) > lead || next < 0 || next >= last;
    // Blocks of another layer are decoded in advance only for someone who is on the way to them.
    if (most < 1 || isFar || (!isStepping && Math.floor(next / depth) !== Math.floor(at / depth))) return [...coming];
    const layer = Math.floor(next / depth) * depth;
    const from = forward ? next : Math.max(layer, next - most + 1);
    const to = forward ? Math.min(next + most, layer + depth, last) : next + 1;
    const slabs = tiles.map((tile) => ({
      ...this.specOf(plane, tile, group, { index: from, count: to - from }),
      keys: Array.from({ length: to - from }, (_, n) => this.specOf(plane, tile, group, { index: from + n }).key),
    }));
    return [...coming, ...slabs];
  }

  /** Returns tiles of coarser levels, to show until those of the chosen one have arrived, and in place of damaged ones. */
  coarserOf(plane, view, density, chosen, isDamaged) {
    const last = this.volume.levels.length - 1;
    if (chosen.number >= last) return [];
    const numbers = new Set([last]);
    if (isDamaged) numbers.add(chosen.number + 1);
    const options = [...numbers].sort((a, b) => b - a).map((number) => sampling(view, density, number));
    return options.flatMap((option) => (cost(view, option) > FIRST_COST ? [] : tilesOf(view, option).map((tile) => this.specOf(plane, tile, 0))));
  }
}
