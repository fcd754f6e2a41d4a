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

const known = (size) => (size > 0 ? number(size) : "?");
const TIME = /^(t|time|frame|timepoint)s?$/i;
const CHANNEL = /^(c['^]?|ch|channels?)$/i;

/** Describes the voxel size of a volume, as far as it is known. Channels have no size. */
export function voxelSize({ axes, channel, voxelSize: sizes, units }) {
  const shown = [...axes.keys()].filter((axis) => axis !== channel);
  if (shown.every((axis) => sizes[axis] === null)) return "unknown";
  const pick = (list) => shown.map((axis) => list[axis]);
  return voxel(pick(sizes), pick(units), pick(axes)) ?? `${pick(sizes).map(known).join(" × ")}, unit unknown`;
}

/**
 * Formats a voxel size: `8 × 8 × 32 nm`, or with one unit per axis if the units differ, and `every 2 s` along time.
 * Returns null without units. Channels have no size, nor has an axis without a unit.
 */
export function voxel(resolution, units, axes) {
  if (!resolution || !units?.some(Boolean)) return null;
  const all = resolution.map((size, axis) => ({ size, unit: units[axis] ? unit(units[axis]) : "", name: axes?.[axis] ?? "" }));
  const space = all.filter(({ name, size, unit: own }) => !TIME.test(name) && !CHANNEL.test(name) && (own || size === null));
  const used = [...new Set(space.map(({ unit: own }) => own).filter(Boolean))];
  const time = all.filter(({ name, size, unit: own }) => TIME.test(name) && own && size > 0).map(({ size, unit: own }) => `every ${number(size)} ${own}${size !== 1 && /^(second|minute|hour|day)$/.test(own) ? "s" : ""}`);
  const texts = space.map(({ size, unit: own }) => (used.length > 1 && own ? `${known(size)} ${own}` : known(size)));
  const text = used.length === 1 ? `${texts.join(" × ")} ${used[0]}` : texts.join(" × ");
  return [used.length > 0 && text, ...time].filter(Boolean).join(", ") || null;
}

export function compression(info) {
  const { type, cname, useZlib } = info.compression ?? {};
  if (type === "gzip" && useZlib === true) return "zlib";
  return type === "blosc" && cname ? `blosc (${cname})` : type ?? "unknown";
}
