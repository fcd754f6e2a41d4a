// Fetching of planes. The server decodes them; here they become typed arrays.

import { ask, url } from "./server.js";

const TYPES = {
  uint8: Uint8Array, int8: Int8Array, uint16: Uint16Array, int16: Int16Array, uint32: Uint32Array, int32: Int32Array,
  uint64: BigUint64Array, int64: BigInt64Array, float32: Float32Array, float64: Float64Array,
};

/** Cache of fetched planes, the most recently used last. */
const kept = new Map();
const KEPT_BYTES = 64 << 20;
let keptBytes = 0;

/** Fetches the plane of a request made by `cut`. Resolves to the request with `data` added. */
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
  // Another request for the same plane may have finished first.
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

/** Returns the element at a column and row of a plane. */
export function elementAt(plane, column, row, channel = 0) {
  return plane.data[column * plane.strides[0] + row * plane.strides[1] + channel * plane.strides[2]];
}

/** A place in the preview that shows the latest requested plane. A request is aborted soon after a newer one. */
export class Slot {
  /** `show(plane)` or `fail(error, request)` is called when a request ends, `busy(flag)` when work starts or ends. */
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
      // The delay lets some requests finish during a drag, so that planes are shown on the way.
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
