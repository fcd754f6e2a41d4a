// The tiles of all planes: fetched in order of importance, and kept while there is room.

import { planesIn, readPart } from "./planes.js";

const KEPT_BYTES = 96 << 20;
/** Number of tiles fetched at once. Browsers open six connections to a host; some are left for the rest of the page. */
const PARALLEL = 4;
/** Time that a tile which is no longer wanted may still take, so that some tiles arrive during a drag. */
const GRACE = 200;
const RETRIES = 3;
/** Largest number of seconds before a request is repeated, whatever the server says. */
const MOST_SECONDS = 15;

/** Number of failed tiles that are remembered. */
const FAILED = 500;

/** Statuses after which the same request may succeed. */
const PASSING = new Set([0, 429, 500, 502, 503, 504]);

/**
 * The store. A tile is described by {key, parts, box, step, number, group}: `parts` are made by `partOf`, or null for
 * none. A part with `isOptional` may fail. `group` says how urgent the tile is; tiles of a group are fetched once those
 * of earlier groups have arrived. A slab also has the axis `normal`; its planes are kept as tiles with the keys `keys`.
 */
export class TileStore {
  /** `arrived(tile)` is called with each tile that was read or has failed; a failed one has an `error`. */
  constructor(arrived) {
    Object.assign(this, { arrived, kept: new Map(), bytes: 0, running: new Map(), wish: [], failed: new Map(), tries: new Map() });
    /** Keys of tiles that are requested again after a delay. */
    this.delayed = new Set();
    /** Pictures of the kept tiles by the keys of their parts. */
    this.pictures = new Map();
    /** Keys of slabs that are not requested again, with true for those that failed for a reason that may pass. */
    this.refused = new Map();
  }

  /** Returns the tile with this key if it was fetched: {pictures} or {error}. */
  find(key) {
    const tile = this.kept.get(key);
    if (tile) {
      this.kept.delete(key);
      this.kept.set(key, tile);
      return tile;
    }
    return this.failed.get(key);
  }

  has(spec) {
    if (!spec.keys) return Boolean(this.find(spec.key));
    return this.refused.has(spec.key) || spec.keys.every((key) => this.find(key));
  }

  /** Returns the slab that is being fetched and has the tile with this key. */
  slabWith(key) {
    return [...this.running.values()].find(({ spec, controller }) => !controller.signal.aborted && spec.keys?.includes(key))?.spec;
  }

  /** Replaces the list of wanted tiles. */
  want(specs) {
    this.wish = specs.filter((spec) => !spec.pictures && !this.has(spec));
    const wanted = new Set(this.wish.map(({ key }) => key));
    for (const running of this.running.values()) {
      // A slab that was begun for the coming planes may have the one that is wanted now.
      const { key, keys } = running.spec;
      if (wanted.has(key) || keys?.some((one) => wanted.has(one))) {
        clearTimeout(running.timer);
        running.timer = null;
      } else running.timer ??= setTimeout(() => running.controller.abort(), GRACE);
    }
    this.start();
  }

  start() {
    const possible = this.wish.filter(({ key }) => !this.delayed.has(key));
    const urgent = Math.min(...possible.map(({ group }) => group));
    // Less urgent tiles, such as slabs that were begun earlier, do not delay urgent ones.
    let running = [...this.running.values()].filter(({ spec }) => spec.group <= urgent).length;
    for (const spec of possible) {
      if (running >= PARALLEL) return;
      if (spec.group !== urgent || this.running.has(spec.key)) continue;
      running += 1;
      this.fetch(spec);
    }
  }

  async fetch(spec) {
    const running = { spec, controller: new AbortController(), timer: null };
    this.running.set(spec.key, running);
    let wait = 0;
    try {
      const { signal } = running.controller;
      const pictures = await Promise.all(spec.parts.map((part) => part && this.read(part, spec, signal)));
      this.keep(spec, pictures);
    } catch (error) {
      if (error.name !== "AbortError") wait = this.fail(spec, error);
    }
    clearTimeout(running.timer);
    this.running.delete(spec.key);
    if (wait) {
      this.delayed.add(spec.key);
      setTimeout(() => {
        this.delayed.delete(spec.key);
        this.start();
      }, wait);
    }
    this.wish = this.wish.filter((one) => !this.has(one));
    // After `arrived`, the preview first says what it wants next.
    if (wait || spec.keys || running.controller.signal.aborted) this.start();
  }

  /** Fetches a part, unless a tile has it already: with other channels, for example. */
  read(part, spec, signal) {
    const found = this.pictures.get(part.key);
    if (found) return part.of ? { ...found, of: part.of, index: part.index } : found;
    // A slab with a damaged block is of no use.
    return readPart(part, signal, spec.keys !== null && spec.keys !== undefined).catch((error) => {
      const mayPass = PASSING.has(error.status ?? 0) && (this.tries.get(spec.key) ?? 0) < RETRIES;
      if (!part.isOptional || error.name === "AbortError" || mayPass) throw error;
      return null;
    });
  }

  keep(spec, pictures) {
    const bytes = pictures.reduce((sum, picture) => sum + (picture?.data.byteLength ?? 0), 0);
    if (spec.keys) {
      if (pictures.includes(null)) {
        this.refused.set(spec.key, false);
        return;
      }
      const planes = pictures.map((picture) => planesIn(picture, spec.normal));
      const wanted = new Set(this.wish.map(({ key }) => key));
      spec.keys.forEach((key, n) => {
        const tile = { ...spec, key, keys: null, pictures: planes.map((all) => all[n]) };
        this.add(key, tile, bytes / spec.keys.length);
        if (wanted.has(key)) this.arrived(tile);
      });
    } else {
      const tile = { ...spec, pictures };
      this.add(spec.key, tile, bytes);
      this.arrived(tile);
    }
  }

  add(key, tile, bytes) {
    if (this.kept.has(key)) return;
    this.kept.set(key, Object.assign(tile, { bytes }));
    this.bytes += bytes;
    for (const picture of tile.pictures) if (picture) this.pictures.set(picture.key, picture);
    for (const [old, { bytes: freed, pictures }] of this.kept) {
      if (this.bytes <= KEPT_BYTES || old === key) break;
      this.kept.delete(old);
      for (const picture of pictures) if (picture) this.pictures.delete(picture.key);
      this.bytes -= freed;
    }
  }

  /** Records a failure. Returns how long to wait before the tile is requested again; 0 if it is given up. */
  fail(spec, error) {
    if (spec.keys) {
      this.refused.set(spec.key, PASSING.has(error.status ?? 0));
      return 0;
    }
    const tries = (this.tries.get(spec.key) ?? 0) + 1;
    if (PASSING.has(error.status ?? 0) && tries <= RETRIES) {
      this.tries.set(spec.key, tries);
      return Math.min(error.retryAfter || tries, MOST_SECONDS) * 1000;
    }
    const tile = { ...spec, pictures: null, error };
    this.tries.delete(spec.key);
    this.failed.set(spec.key, tile);
    if (this.failed.size > FAILED) this.failed.delete(this.failed.keys().next().value);
    this.arrived(tile);
    return 0;
  }

  /** Forgets failures that may pass, so that these tiles are requested again when they are wanted. */
  forgive() {
    this.tries.clear();
    for (const [key, mayPass] of this.refused) if (mayPass) this.refused.delete(key);
    for (const [key, { error }] of this.failed) if (PASSING.has(error.status ?? 0)) this.failed.delete(key);
  }
}
