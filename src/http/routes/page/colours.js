// Colours: of labels, of channels, and as text.

/** Pseudorandom but fixed colours, bright enough on black, as 0xAABBGGRR. */
const PALETTE = Uint32Array.from({ length: 4096 }, (_, n) => {
  const hue = ((n * 0.61803398875) % 1) * 6;
  const saturation = 0.5 + 0.5 * (((n * 37) % 64) / 63);
  const value = 0.62 + 0.38 * (((n * 101) % 64) / 63);
  const channel = (shift) => {
    const k = (shift + hue) % 6;
    return Math.round(255 * value * (1 - saturation * Math.max(0, Math.min(k, 4 - k, 1))));
  };
  return (0xff000000 | (channel(1) << 16) | (channel(3) << 8) | channel(5)) >>> 0;
});

/** Returns a well-mixed hash of the two 32-bit halves of a label. */
function hash(low, high) {
  let h = Math.imul(low ^ (low >>> 16), 0x7feb352d) ^ Math.imul(high, 0x846ca68b);
  h = Math.imul(h ^ (h >>> 15), 0x846ca68b);
  return (h ^ (h >>> 16)) >>> 0;
}

/** Returns f(index of an element), the colour of the element as a label. Label 0 is transparent. */
export function labelColours(data) {
  const size = data.BYTES_PER_ELEMENT;
  const words = size < 4 ? data : new Int32Array(data.buffer, data.byteOffset, data.byteLength / 4);
  const colour = (low, high) => (low === 0 && high === 0 ? 0 : PALETTE[hash(low, high) >>> 20]);
  return size === 8 ? (n) => colour(words[2 * n], words[2 * n + 1]) : (n) => colour(words[n], 0);
}

/** Returns the colour of one label as `#rrggbb`; null for 0. */
export function labelColour(label) {
  const bits = new BigInt64Array([BigInt.asIntN(64, BigInt(label))]);
  const colour = labelColours(bits)(0);
  return colour === 0 ? null : hex([colour & 255, (colour >>> 8) & 255, (colour >>> 16) & 255]);
}

/**
 * Colours of channels. Readers with any form of colour blindness can tell two channels and their mixture apart: magenta
 * and green add up to white. Three or more start with cyan, magenta and yellow.
 */
const TWO = ["#ff00ff", "#00ff00"];
const MANY = ["#00ffff", "#ff00ff", "#ffff00", "#ff7a1a", "#4d7dff", "#33e06a", "#ff5c8a", "#ffffff"];
export const RED_GREEN_BLUE = ["#ff0000", "#00ff00", "#0000ff"];

/** Returns the default colour of channel `n` of `count`. */
export function channelColour(n, count) {
  if (count === 1) return "#ffffff";
  return count === 2 ? TWO[n] : MANY[n % MANY.length];
}

/** Parses `RRGGBB`, with or without `#` and an opacity, to `#rrggbb`; null if the text is no colour. */
export function parseColour(text) {
  const [, digits] = /^#?([0-9a-f]{6})([0-9a-f]{2})?$/i.exec(String(text).trim()) ?? [];
  return digits === undefined ? null : `#${digits.toLowerCase()}`;
}

/** Converts `#rrggbb` to [red, green, blue]. */
export function parts(colour) {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

function hex(rgb) {
  return `#${rgb.map((part) => part.toString(16).padStart(2, "0")).join("")}`;
}
