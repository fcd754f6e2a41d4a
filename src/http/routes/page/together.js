// Links that open several volumes of a group together.

import { opener } from "./actions.js";
import { h } from "./dom.js";
import { isOpenable, together } from "./neuroglancer_link.js";
import { alignment } from "./overlay.js";
import { encodeName, infoOf, withToken } from "./server.js";
import { kindOf, volumeOf } from "./volume.js";

/** Maximum number of volumes that are opened together. */
const LAYERS = 12;

/** Returns a volume as {info, volume, stats}; null if Neuroglancer cannot show it. */
async function read(path) {
  const info = await infoOf(path);
  const volume = await volumeOf(info);
  return volume && isOpenable(info, volume) ? { info, volume, stats: null } : null;
}

/** Returns the link, {href, text}, to the first image of a group with labels on top; null if there are none. */
function overlayOf(volumes) {
  const segmentations = volumes.filter(({ info, volume }) => kindOf(info, volume, null) === "segmentation");
  const name = ({ info }) => info.path.split("/").pop();
  const images = volumes.filter((one) => !segmentations.includes(one));
  // Floating-point volumes are more often derived than taken by a microscope.
  images.sort((a, b) => a.volume.dataType.startsWith("float") - b.volume.dataType.startsWith("float"));
  for (const image of images) {
    const labels = segmentations.find((one) => alignment(image, one));
    if (labels) return { href: withToken(`${encodeName(name(image))}/`) + `#labels=${encodeName(name(labels))}`, text: `${name(image)} with ${name(labels)}` };
  }
  return null;
}

/** Builds the links for the volumes at some paths: to Neuroglancer, and to an image with labels on top. */
export async function openers(paths) {
  const found = await Promise.allSettled(paths.slice(0, LAYERS + 1).map(read));
  const volumes = found.map(({ value }) => value).filter(Boolean);
  const overlay = overlayOf(volumes);
  return [
    volumes.length <= LAYERS && together(volumes) && opener("Open all in Neuroglancer", volumes),
    overlay && h("a", { class: "second", href: overlay.href, text: overlay.text }),
  ].filter(Boolean);
}
