// Conversion of elements to pixels.

/** Pseudorandom but fixed colours, bright enough on black. */
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

/** Returns the elements as 32-bit words, or unchanged if they are narrower: [array, words per element]. */
function words(data) {
  if (data.BYTES_PER_ELEMENT === 8) return [new Int32Array(data.buffer), 2];
  if (data.BYTES_PER_ELEMENT === 4) return [new Int32Array(data.buffer), 1];
  return [data, 1];
}

/** Paints labels: one colour per label; 0 is transparent. */
function segmentation(plane, pixels) {
  const [array, each] = words(plane.data);
  const { width, height, strides } = plane;
  let n = 0;
  for (let row = 0; row < height; row += 1) {
    for (let column = 0; column < width; column += 1, n += 1) {
      const at = (column * strides[0] + row * strides[1]) * each;
      const low = array[at];
      const high = each === 2 ? array[at + 1] : 0;
      pixels[n] = low === 0 && high === 0 ? 0 : PALETTE[hash(low, high) >>> 20];
    }
  }
}

/** Paints an image in grey or in red, green and blue. `low` is black and `high` is white. */
function image(plane, [low, high], bytes) {
  const { data, width, height, strides } = plane;
  const big = typeof data[0] === "bigint";
  const scale = high > low ? 255 / (high - low) : 0;
  const channels = strides[2] ? [0, strides[2], 2 * strides[2]] : [0, 0, 0];
  let n = 0;
  for (let row = 0; row < height; row += 1) {
    for (let column = 0; column < width; column += 1, n += 4) {
      const at = column * strides[0] + row * strides[1];
      for (let channel = 0; channel < 3; channel += 1) {
        const value = data[at + channels[channel]];
        const level = scale ? ((big ? Number(value) : value) - low) * scale : value > low ? 255 : 0;
        // A clamped array rounds values and stores NaN as 0.
        bytes[n + channel] = level;
      }
      bytes[n + 3] = 255;
    }
  }
}

/** Draws a plane into a canvas, one pixel per element. */
export function draw(canvas, plane, kind, window) {
  if (canvas.width !== plane.width || canvas.height !== plane.height) {
    canvas.width = plane.width;
    canvas.height = plane.height;
  }
  if (plane.width === 0 || plane.height === 0) return;
  const drawn = new ImageData(plane.width, plane.height);
  if (kind === "segmentation") segmentation(plane, new Uint32Array(drawn.data.buffer));
  else image(plane, window, drawn.data);
  canvas.getContext("2d").putImageData(drawn, 0, 0);
}
