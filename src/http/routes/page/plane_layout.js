// The sizes of the planes, so that all have the same scale and fit the room that there is.

const GAP = 6;
/** Width of the free corner, in pixels, in which the readout fits. */
const CORNER = 200;
/** Smallest and largest height of the planes, in pixels, unless the preview fills the window. */
const LEAST_HEIGHT = 320;
const MOST_HEIGHT = 900;

/** Returns the height that the planes may take on a page. */
export function heightOnPage() {
  return Math.max(LEAST_HEIGHT, Math.min(innerHeight * 0.8, MOST_HEIGHT));
}

/**
 * Arranges three planes: x y at the top left, z y beside it and x z below it, aligned. `extent(axis)` returns the length
 * of an axis. Returns the width and height of each plane in `sizes`, and `fit`, the pixels per unit of length.
 */
export function arrangeAll(planes, extent, width, height) {
  const [[x, y], [z]] = planes;
  const room = width - GAP;
  const share = (long, short, least) => Math.min(Math.max(extent(short) / (extent(long) + extent(short)), least), 0.6);
  const beside = Math.round(room * share(x, z, Math.min(0.45, CORNER / room)));
  const columns = [room - beside, beside];
  const below = share(y, z, 0.22);
  // The height that the volume takes at the scale that its width allows, but not more than there is.
  const wide = Math.min(columns[0] / extent(x), columns[1] / extent(z));
  const tall = Math.min(height - GAP, Math.max(LEAST_HEIGHT, wide * extent(y) / (1 - below)));
  const rows = [Math.round(tall * (1 - below)), Math.round(tall * below)];
  return {
    fit: Math.min(wide, rows[0] / extent(y), rows[1] / extent(z)),
    sizes: [[columns[0], rows[0]], [columns[1], rows[0]], [columns[0], rows[1]]],
  };
}

/** Returns the size of a plane that is shown alone, and `fit`. With `isFilling`, the plane takes all of the height. */
export function arrangeOne([x, y], extent, width, height, isFilling) {
  if (y === null) return { fit: width / extent(x), size: [width, 48] };
  const tall = isFilling ? height : Math.min(height, Math.max(200, (width * extent(y)) / extent(x)));
  return { fit: Math.min(width / extent(x), tall / extent(y)), size: [width, Math.round(tall)] };
}
