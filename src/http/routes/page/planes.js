// Fetching of parts of planes. The server decodes them; here they become typed arrays. Around damaged blocks, the rest
// of a part is fetched in pieces.

import { ask, url } from "./server.js";

const TYPES = {
  uint8: Uint8Array, int8: Int8Array, uint16: Uint16Array, int16: Int16Array, uint32: Uint32Array, int32: Int32Array,
  uint64: BigUint64Array, int64: BigInt64Array, float32: Float32Array, float64: Float64Array,
};

/** Maximum number of requests for one part. */
const MOST_PIECES = 48;

// An area of a part is [left, right, top, bottom, first, last], in the part's own elements; the last two are its channels.

/**
 * Describes a part of a plane: the request for it, and where its elements are. `box` has `start`, `stop` and `step` for
 * every axis of the level, `axes` the axes to the right and down (null for none), `channel` an axis that is fetched as
 * a whole range.
 */
export function partOf({ path, level, dataType, box, axes, channel = null }) {
  const { start, stop, step } = box;
  const shape = start.map((from, axis) => Math.max(0, Math.ceil((stop[axis] - from) / step[axis])));
  const strides = shape.map((_, axis) => shape.slice(0, axis).reduce((a, b) => a * b, 1));
  const along = (list, axis, otherwise) => (axis === null ? otherwise : list[axis]);
  return {
    key: `${path}?${start}/${stop}/${step}`,
    path, level, dataType, axes, channel, start, stop, step, shape,
    query: `start=${start}&stop=${stop}&step=${step}&format=raw`,
    width: along(shape, axes[0], 1), height: along(shape, axes[1], 1),
    strides: [along(strides, axes[0], 0), along(strides, axes[1], 0), along(strides, channel, 0)],
    channels: channel === null ? null : [start[channel], stop[channel]],
  };
}

function depthOf({ channels }) {
  return channels ? channels[1] - channels[0] : 1;
}

/** Returns the same part restricted to an area. */
function restricted(part, [left, right, top, bottom, first, last]) {
  const box = { start: [...part.start], stop: [...part.stop], step: part.step };
  [[left, right], [top, bottom], [first, last]].forEach(([from, to], n) => {
    const axis = [...part.axes, part.channel][n];
    if (axis === null) return;
    box.start[axis] = part.start[axis] + from * part.step[axis];
    box.stop[axis] = Math.min(part.stop[axis], part.start[axis] + to * part.step[axis]);
  });
  return partOf({ ...part, box });
}

/**
 * Returns the elements that lie in block `index` along axis `n`, as a range of the part's own elements: 0 is the axis to
 * the right, 1 the one down, 2 that of channels.
 */
function within(part, n, index) {
  const axis = [...part.axes, part.channel][n];
  if (axis === null) return [0, 1];
  const size = part.level.info.block_size[axis];
  const place = (at) => Math.ceil((at - part.start[axis]) / part.step[axis]);
  const count = [part.width, part.height, depthOf(part)][n];
  return [place(index * size), place((index + 1) * size)].map((at) => Math.min(count, Math.max(0, at)));
}

/** Fetches a part with one request. Resolves to the part with `data` and the number of `missing` blocks added. */
async function readWhole(part, signal) {
  const response = await ask(url("slice", part.path, part.query), signal);
  const missing = Number(response.headers.get("n5-missing-blocks") ?? 0);
  return { ...part, data: new TYPES[part.dataType](await response.arrayBuffer()), missing, damaged: [] };
}

/** Copies the elements of a piece to their place in the part. */
function paste(part, piece, [left, , top, , first]) {
  const { data } = part;
  for (let channel = 0; channel < depthOf(piece); channel += 1) {
    for (let row = 0; row < piece.height; row += 1) {
      let from = channel * piece.strides[2] + row * piece.strides[1];
      let to = (channel + first) * part.strides[2] + (row + top) * part.strides[1] + left * part.strides[0];
      for (let column = 0; column < piece.width; column += 1, from += piece.strides[0], to += part.strides[0]) {
        data[to] = piece.data[from];
      }
    }
  }
}

/** Returns the areas to try after the request for an area failed, and the area given up. */
function split(part, area, error) {
  const [left, right, top, bottom, first, last] = area;
  const block = error.document?.block;
  if (error.status === 413) {
    const [width, height] = [right - left, bottom - top];
    if (width * height <= 1) return { rest: [], lost: area };
    if (width >= height) {
      const middle = left + Math.ceil(width / 2);
      return { rest: [[left, middle, top, bottom, first, last], [middle, right, top, bottom, first, last]], lost: null };
    }
    const middle = top + Math.ceil(height / 2);
    return { rest: [[left, right, top, middle, first, last], [left, right, middle, bottom, first, last]], lost: null };
  }
  if (!Array.isArray(block)) return { rest: [], lost: area };
  const [columns, rows, depths] = [...part.axes, part.channel].map((axis, n) => within(part, n, block[axis]));
  const [a, b] = [Math.max(left, columns[0]), Math.min(right, columns[1])];
  const [c, d] = [Math.max(top, rows[0]), Math.min(bottom, rows[1])];
  const [e, f] = [Math.max(first, depths[0]), Math.min(last, depths[1])];
  if (a >= b || c >= d || e >= f) return { rest: [], lost: area };
  const around = [
    [left, right, top, c, first, last], [left, a, c, d, first, last], [b, right, c, d, first, last], [left, right, d, bottom, first, last],
    [a, b, c, d, first, e], [a, b, c, d, f, last],
  ];
  return { rest: around.filter((one) => one[1] > one[0] && one[3] > one[2] && one[5] > one[4]), lost: [a, b, c, d, e, f] };
}

/** Returns true if a part of the region may be readable although the request for all of it failed with this error. */
function isDivisible(error) {
  // Without a `piece`, the server accepts not even one element.
  return (error.status === 413 && error.document?.piece) || (error.status === 422 && error.document?.block !== undefined);
}

/** Fetches what can be read of a part. `damaged` lists the rest: {area, error}. */
async function readPieces(part, first, signal) {
  const count = part.shape.reduce((a, b) => a * b, 1);
  const result = { ...part, data: new TYPES[part.dataType](count), missing: 0, damaged: [] };
  let requests = 1;
  let failed = [{ area: [0, part.width, 0, part.height, 0, depthOf(part)], error: first }];
  while (failed.length) {
    const areas = [];
    for (const { area, error } of failed) {
      const { rest, lost } = split(part, area, error);
      if (lost) result.damaged.push({ area: lost, error });
      for (const one of rest) {
        // What is left after too many requests is not read, because of the error that led here.
        if (requests >= MOST_PIECES) result.damaged.push({ area: one, error, isUnread: true });
        else areas.push({ area: one });
        requests += 1;
      }
    }
    const answers = await Promise.all(areas.map(async ({ area }) => {
      try {
        const piece = await readWhole(restricted(part, area), signal);
        result.missing += piece.missing;
        paste(result, piece, area);
        return null;
      } catch (error) {
        if (!isDivisible(error)) throw error;
        return { area, error };
      }
    }));
    failed = answers.filter(Boolean);
  }
  if (result.damaged.length && result.damaged.every(({ error }) => error.status === 413)) throw first;
  return result;
}

/**
 * Returns the areas of a part whose blocks were never written. The server says how many there are. Which ones is known
 * if exactly as many blocks have only zeros in this part; otherwise the result is empty.
 */
function holesOf(part) {
  const { missing, data, strides } = part;
  const size = part.level.info.block_size;
  if (!missing || !size) return [];
  const shown = part.axes.filter((axis) => axis !== null);
  // Blocks behind each other, of other channels, cannot be told apart.
  if (part.channels && (part.channels[1] - 1) / size[part.channel] >= Math.floor(part.channels[0] / size[part.channel]) + 1) return [];
  if (shown.some((axis) => part.step[axis] > size[axis])) return [];
  const blocks = part.axes.map((axis) =>
    axis === null ? [0, 0] : [Math.floor(part.start[axis] / size[axis]), Math.floor((part.stop[axis] - 1) / size[axis])]);
  const channels = depthOf(part);
  const isZero = ([left, right, top, bottom]) => {
    for (let channel = 0; channel < channels; channel += 1) {
      for (let row = top; row < bottom; row += 1) {
        for (let column = left; column < right; column += 1) {
          // Elements of 64 bits are of another type than 0.
          if (Number(data[channel * strides[2] + row * strides[1] + column * strides[0]]) !== 0) return false;
        }
      }
    }
    return true;
  };
  const isDamaged = ([left, right, top, bottom]) =>
    part.damaged.some(({ area: [a, b, c, d] }) => a < right && b > left && c < bottom && d > top);
  const holes = [];
  for (let row = blocks[1][0]; row <= blocks[1][1]; row += 1) {
    for (let column = blocks[0][0]; column <= blocks[0][1]; column += 1) {
      const area = [...within(part, 0, column), ...within(part, 1, row)];
      if (area[1] > area[0] && area[3] > area[2] && !isDamaged(area) && isZero(area)) holes.push(area);
      if (holes.length > missing) return [];
    }
  }
  return holes.length === missing ? holes : [];
}

/**
 * Fetches a part made by `partOf`. Resolves to the part with its elements in `data`, with `damaged` areas and with
 * `holes`, areas that were never written. With `isWhole`, a part that cannot be read as a whole fails.
 */
export async function readPart(part, signal, isWhole = false) {
  let read;
  try {
    read = await readWhole(part, signal);
  } catch (error) {
    if (isWhole || !isDivisible(error)) throw error;
    read = await readPieces(part, error, signal);
  }
  return { ...read, holes: holesOf(read) };
}

/** Returns the entries of `damaged` that concern channel `index` of the volume. */
export function damagedIn({ damaged, channels }, index) {
  const own = channels ? index - channels[0] : 0;
  return damaged.filter(({ area }) => own >= area[4] && own < area[5]);
}

/** Returns true if one of the areas has the element at a column and row. */
export function isInside(areas, column, row) {
  return areas.some(([left, right, top, bottom]) => column >= left && column < right && row >= top && row < bottom);
}

/** Returns the areas that are common to all lists. The areas of each list do not overlap. */
export function commonAreas(lists) {
  const shared = (a, b) => [Math.max(a[0], b[0]), Math.min(a[1], b[1]), Math.max(a[2], b[2]), Math.min(a[3], b[3])];
  const both = (some, others) =>
    some.flatMap((a) => others.map((b) => shared(a, b)).filter(([left, right, top, bottom]) => right > left && bottom > top));
  return lists.length ? lists.slice(1).reduce(both, lists[0]) : [];
}

/** Returns the elements of channel `index` of the volume that could be read, as `measureData` takes them. */
export function elementsOf(part, index) {
  const { data, width, height, strides, channels } = part;
  const areas = damagedIn(part, index).map(({ area }) => area);
  const offset = channels ? (index - channels[0]) * strides[2] : 0;
  return {
    count: width * height,
    at: (n) => {
      const [column, row] = [n % width, Math.floor(n / width)];
      return isInside(areas, column, row) ? undefined : data[offset + column * strides[0] + row * strides[1]];
    },
  };
}

/**
 * Returns the planes of a slab: a part that has several elements along axis `normal`, all in the same layer of blocks.
 */
export function planesIn(slab, normal) {
  const each = slab.shape.slice(0, normal).reduce((a, b) => a * b, 1);
  return Array.from({ length: slab.shape[normal] }, (_, n) => {
    const at = slab.start[normal] + n * slab.step[normal];
    const box = { start: [...slab.start], stop: [...slab.stop], step: slab.step };
    [box.start[normal], box.stop[normal]] = [at, at + 1];
    // The elements stay where they are in the slab; only the first one differs.
    const plane = { ...slab, ...partOf({ ...slab, box }), data: slab.data.subarray(n * each), strides: slab.strides, missing: slab.missing, damaged: [] };
    return { ...plane, holes: holesOf(plane) };
  });
}
