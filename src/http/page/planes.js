// Fetching planes: decoded by the server, typed arrays here.

import { ask, url } from "./server.js";

const TYPES = {
  uint8: Uint8Array, int8: Int8Array, uint16: Uint16Array, int16: Int16Array, uint32: Uint32Array, int32: Int32Array,
  uint64: BigUint64Array, int64: BigInt64Array, float32: Float32Array, float64: Float64Array,
};

/** Planes that were fetched, the latest last. */
const kept = new Map();
const KEPT_BYTES = 64 << 20;
let keptBytes = 0;

/** The plane of a request made by `cut`: the request with `data`. */
export async function fetchPlane(request, signal) {
  const found = kept.get(request.key);
  if (found) {
    kept.delete(request.key);
    kept.set(request.key, found);
    return found;
  }
  const response = await ask(url("slice", request.path, request.query), signal);
  const data = new TYPES[request.dataType](await response.arrayBuffer());
  const plane = { ...request, data };
  // Another request for the same may have been faster.
  if (kept.has(request.key)) return kept.get(request.key);
  kept.set(request.key, plane);
  keptBytes += data.byteLength;
  for (const [key, old] of kept) {
    if (keptBytes <= KEPT_BYTES) break;
    kept.delete(key);
    keptBytes -= old.data.byteLength;
  }
  return plane;
}

export function isKept(request) {
  return kept.has(request.key);
}

/** The element at column and row of a plane. */
export function elementAt(plane, column, row, channel = 0) {
  return plane.data[column * plane.strides[0] + row * plane.strides[1] + channel * plane.strides[2]];
}

/** One place in the preview: shows the latest wish; a request that is overtaken soon ends. */
export class Slot {
  /** `show(plane)` and `fail(error)` are called when the wish is answered. */
  constructor(show, fail, busy) {
    Object.assign(this, { show, fail, busy, running: null, wish: null });
  }

  want(request) {
    if (this.running?.request.key === request.key) {
      this.wish = null;
      clearTimeout(this.running.timer);
      this.running.timer = null;
      return;
    }
    if (this.running) {
      this.wish = request;
      // A short while, so that dragging shows something on its way.
      this.running.timer ??= setTimeout(() => this.running?.controller.abort(), 200);
      return;
    }
    this.start(request);
  }

  async start(request) {
    const controller = new AbortController();
    const running = { request, controller, timer: null };
    this.running = running;
    this.busy(true);
    try {
      this.show(await fetchPlane(request, controller.signal));
    } catch (error) {
      if (error.name !== "AbortError") this.fail(error, request);
    }
    clearTimeout(running.timer);
    this.running = null;
    const { wish } = this;
    this.wish = null;
    if (wish) this.start(wish);
    else this.busy(false);
  }
}
