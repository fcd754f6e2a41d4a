// Requests for a part of a volume: the address, what the server returns, and the same request as code.

import { url } from "./server.js";
import { commented, quoted } from "./snippets.js";
import { ITEM_BYTES } from "./volume.js";

/** The formats. `isPicture` marks those that show one plane, with contrast and colours. */
export const FORMATS = {
  tiff: { name: "TIFF", suffix: "tif" },
  npy: { name: "NPY", suffix: "npy" },
  png: { name: "PNG", suffix: "png", isPicture: true },
  jpeg: { name: "JPEG", suffix: "jpg", isPicture: true },
  raw: { name: "Raw", suffix: "raw" },
};

const product = (numbers) => numbers.reduce((a, b) => a * b, 1);

/** Returns the part of a level, [start, stop) per axis, that covers a box of elements of the finest level. */
function partOfLevel({ dimensions, factors }, box) {
  return box.map(([from, to], axis) => {
    const start = Math.min(dimensions[axis] - 1, Math.floor(from / factors[axis] + 1e-6));
    // One plane of the finest level is one plane of every level.
    const stop = to - from === 1 ? start + 1 : Math.ceil(to / factors[axis] - 1e-6);
    return [start, Math.min(dimensions[axis], Math.max(start + 1, stop))];
  });
}

/**
 * Describes the request for a box (elements of the finest level) in a format; null if the stack stores nothing there.
 * `look` is the part of the query with contrast and colours, `mixed` the axis of the channels that a picture mixes, and
 * `dtype` the type to convert to, null for the stored one.
 */
export function requestFor(volume, { box, level: number, format, look, mixed, dtype = null }) {
  const level = volume.levels[number];
  let part = partOfLevel(level, box);
  let { path, info } = level;
  if (volume.stack) {
    const { pathOf, time, rank } = volume.stack;
    path = pathOf(...[volume.channel, time].map((axis) => (axis < 0 ? 0 : part[axis][0])));
    if (path === null) return null;
    path += level.suffix;
    info = level.stored.info;
    part = part.slice(0, rank);
  }
  // As in the snippets, an axis with a single index is dropped.
  const isKept = part.map(([start, stop], axis) => stop - start > 1 || axis === mixed);
  const items = part.map(([start, stop], axis) => (isKept[axis] ? `${start}:${stop}` : start));
  const shape = part.map(([start, stop]) => stop - start);
  const size = info.block_size;
  const spans = part.map(([start, stop], axis) => [Math.floor(start / size[axis]), Math.ceil(stop / size[axis])]);
  const covered = spans.map(([from, to], axis) => Math.min(info.dimensions[axis], to * size[axis]) - from * size[axis]);
  const dataType = dtype ?? volume.dataType;
  const bytes = product(shape) * (ITEM_BYTES[dataType] ?? 1);
  return {
    level, part, shape, bytes, format, dataType, hasContrast: look !== "", isConverted: dtype !== null, names: commented(volume.axes),
    kept: [...part.keys()].filter((axis) => isKept[axis]),
    address: url("slice", path, `select=${items}&format=${format}${look}${dtype ? `&dtype=${dtype}` : ""}`),
    blocks: product(spans.map(([from, to]) => to - from)),
    // Of uncompressed blocks only the elements themselves are read.
    decoded: (info.compression?.type === "raw" ? product(shape) : product(covered)) * volume.itemBytes,
    file: safe(`${path.split("/").pop() || "data"}.${FORMATS[format].suffix}`),
  };
}

/** Returns a file name that needs no escape in a shell. */
function safe(name) {
  return name.replace(/[^\w.-]/g, "_").replace(/^[.-]+/, "_");
}

/** Returns the file name in a `Content-Disposition`; null if there is none. */
export function fileIn(disposition) {
  const [, name] = /filename="([^"]+)"/.exec(disposition ?? "") ?? [];
  return name ? safe(name) : null;
}

/** Returns true for integers that ImageJ cannot open. */
export const isTooLongForImageJ = (dataType) => /^u?int64$/.test(dataType);

/** Says what the file holds, and what opens it. */
export function contentOf({ kept, names, dataType, shape, format, hasContrast, isConverted }) {
  const order = kept.map((axis) => names[axis]);
  switch (format) {
    case "tiff":
      if (isTooLongForImageJ(dataType)) return "ImageJ and Fiji cannot open 64-bit integers. tifffile for Python can. The values are as stored.";
      return `For ImageJ, Fiji and others. The values are ${isConverted ? "converted" : "as stored"}.${hasContrast ? " ImageJ opens it with the contrast on the page." : ""}`;
    case "npy": return `For NumPy: array[${order.join(", ")}] of ${dataType}.`;
    case "raw": return `Only the elements, without a header: ${dataType}${dataType.endsWith("8") ? "" : ", little-endian"}, `
      + `${kept.map((axis) => shape[axis]).join(" × ") || 1}${order.length > 1 ? ` along ${order.join(", ")}; ${order[0]} varies fastest` : ""}.`;
    default: return "A picture of one plane.";
  }
}

/** Returns the request as a command for curl. */
export function curlFor({ address }, file) {
  return `curl -fS -o '${file}' '${address}'\n`;
}

/** Returns the request as a Python program. */
export function pythonFor({ address, kept, names, shape, dataType, format }, file) {
  const order = kept.map((axis) => names[axis]);
  const [, kind, bits] = /^(u?)\w*?(\d+)$/.exec(dataType) ?? [];
  const type = `<${dataType.startsWith("float") ? "f" : kind || "i"}${bits / 8}`;
  const readers = {
    tiff: ["import tifffile", "tifffile.imread(name)", order.length > 3 ? [] : [...order].reverse()],
    npy: ["import numpy as np", "np.load(name)", order],
    raw: ["import numpy as np", `np.fromfile(name, "${type}").reshape([${kept.map((axis) => shape[axis]).join(", ")}], order="F")`, order],
    png: ["import numpy as np\nfrom PIL import Image", "np.asarray(Image.open(name))", []],
  };
  const [imports, read, axes] = readers[format] ?? readers.png;
  return `import urllib.request
${imports}

url = ${quoted(address)}
name, _ = urllib.request.urlretrieve(url, ${quoted(file)})
array = ${read}
print(array.dtype, array.shape)${axes.length ? `  # array[${axes.join(", ")}]` : ""}
`;
}
