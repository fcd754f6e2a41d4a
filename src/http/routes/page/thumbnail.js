// Pictures of volumes, which the server draws.

import { h } from "./dom.js";
import { url } from "./server.js";

/**
 * Builds the picture of the volume at a path, which fills a place of fixed size. `size` is its longer side in pixels. A
 * picture that the server cannot draw is taken out of its place, which then shows that it is empty.
 */
export function thumbnail(path, size) {
  const picture = h("img", { alt: "", decoding: "async", loading: "lazy", src: url("thumbnail", path, `size=${size}`) });
  picture.addEventListener("error", () => picture.remove());
  picture.addEventListener("load", () => {
    // The elements of a volume that is smaller than its picture are squares.
    const isSmall = Math.max(picture.naturalWidth, picture.naturalHeight) < size / 2;
    picture.classList.toggle("small", isSmall);
  });
  return picture;
}
