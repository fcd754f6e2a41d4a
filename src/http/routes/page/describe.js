// Formatting of numbers and metadata as text.

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

export function bytes(count) {
  let value = Number(count);
  let unit = 0;
  while (value >= 1024 && unit < SIZES.length - 1) {
    value /= 1024;
    unit += 1;
  }
  if (value >= 1024) return `${value.toPrecision(3)} ${SIZES[unit]}`;
  return `${unit > 0 && value < 10 ? value.toFixed(1) : Math.round(value)} ${SIZES[unit]}`;
}

export function shape(dimensions) {
  return dimensions.length ? dimensions.join(" × ") : "a single element";
}

/** Formats a number: integers exactly, other numbers with five significant digits. */
export function number(value) {
  if (typeof value === "bigint" || Number.isInteger(value)) return String(value);
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
  return String(Number(value.toPrecision(5)));
}

const MICRO = /^(um|micron|microns|micrometer|micrometre|micrometers|micrometres)$/i;

export function unit(name) {
  return MICRO.test(name) ? "µm" : name;
}

const PREFIXED = ["pm", "nm", "µm", "mm", "m"];

/** Formats a length with the prefix that keeps its number short: 2000 nm are `2 µm`. */
export function length(size, name) {
  let at = PREFIXED.indexOf(unit(name));
  let value = size;
  if (at < 0) return `${number(value)} ${unit(name)}`;
  while (value >= 1000 && at < PREFIXED.length - 1) [value, at] = [value / 1000, at + 1];
  while (value < 1 && at > 0) [value, at] = [value * 1000, at - 1];
  return `${number(value)} ${PREFIXED[at]}`;
}

/** Describes the voxel size of a volume, as far as it is known. Channels have no size. */
export function voxelSize(volume) {
  const axes = [...volume.axes.keys()].filter((axis) => axis !== volume.channel);
  const sizes = axes.map((axis) => volume.voxelSize[axis]);
  if (sizes.every((size) => size === null)) return "unknown";
  const units = axes.map((axis) => unit(volume.units[axis]));
  const used = [...new Set(units.filter(Boolean))];
  const texts = sizes.map(known);
  if (used.length === 0) return `${texts.join(" × ")}, unit unknown`;
  if (used.length === 1) return `${texts.filter((_, n) => units[n] || sizes[n] === null).join(" × ")} ${used[0]}`;
  return texts.map((text, n) => `${text}${units[n] ? ` ${units[n]}` : ""}`).join(" × ");
}

const known = (size) => (size > 0 ? number(size) : "?");

/** Formats a voxel size: `8 × 8 × 32 nm`, or with one unit per axis if the units differ. */
export function voxel(resolution, units) {
  if (!resolution) return null;
  const names = (units ?? []).map(unit);
  const used = [...new Set(names.filter(Boolean))];
  if (used.length === 0) return null;
  if (used.length === 1) {
    const sizes = resolution.filter((_, axis) => names[axis]);
    return `${sizes.map(known).join(" × ")} ${used[0]}`;
  }
  return resolution.map((size, axis) => `${known(size)}${names[axis] ? ` ${names[axis]}` : ""}`).join(" × ");
}

export function compression(info) {
  const { type, cname, useZlib } = info.compression ?? {};
  if (type === "gzip" && useZlib === true) return "zlib";
  return type === "blosc" && cname ? `blosc (${cname})` : type ?? "unknown";
}
