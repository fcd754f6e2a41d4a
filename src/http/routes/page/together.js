// Links that open several volumes of a group together.

import { opener } from "./actions.js";
import { h } from "./dom.js";
import { isOpenable, together } from "./neuroglancer_link.js";
import { alignment } from "./overlay.js";
import { directory, encodePath, infoOf } from "./server.js";
import { Subtree, isDrawable } from "./subtree.js";
import { kindOf, volumeOf } from "./volume.js";

/** Maximum number of volumes that are opened together. */
const LAYERS = 12;

/** Number of entries below a group that are searched for images and labels. */
const SEARCHED = 200;

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
    if (!labels) continue;
    const [ours, theirs] = [image, labels].map(({ info }) => info.path.split("/").slice(0, -1).join("/"));
    const wanted = ours === theirs ? name(labels) : `/${labels.info.path}`;
    return { href: `${directory("n5", image.info.path)}#labels=${encodePath(wanted)}`, text: `Show ${name(labels)} over ${name(image)}` };
  }
  return null;
}

/**
 * Returns the paths of images and of labels in different directories below a group, as many as can be opened together;
 * none unless there are both.
 */
export async function imagesAndLabels(path) {
  const subtree = new Subtree(path, { limit: SEARCHED });
  await subtree.more();
  const volumes = subtree.entries.filter(isDrawable);
  const ofKind = (isWanted) => volumes.filter(({ volume }) => (volume === "segmentation") === isWanted).map((entry) => entry.path);
  const [images, labels] = [ofKind(false), ofKind(true)];
  if (images.length === 0 || labels.length === 0) return [];
  // Both kinds get a place, however many there are of the other.
  const most = Math.max(LAYERS / 2, LAYERS - labels.length);
  const chosen = images.slice(0, most);
  return [...chosen, ...labels.slice(0, LAYERS - chosen.length)];
}

/** Builds the link that opens the volumes in Neuroglancer that agree with the first one; false if there is no other. */
function openAgreeing(volumes) {
  const agreeing = volumes.filter((one) => one === volumes[0] || together([volumes[0], one]));
  return agreeing.length > 1 && opener("Open images and labels in Neuroglancer", agreeing);
}

/**
 * Builds the links for the volumes at some paths: to Neuroglancer, and to an image with labels on top. `areChosen` says
 * that they are a choice among many, so that one that does not agree with the others is left out.
 */
export async function openers(paths, areChosen = false) {
  const found = await Promise.allSettled(paths.slice(0, LAYERS + 1).map(read));
  const volumes = found.map(({ value }) => value).filter(Boolean);
  const overlay = overlayOf(volumes);
  return [
    areChosen ? openAgreeing(volumes) : volumes.length <= LAYERS && together(volumes) && opener("Open all in Neuroglancer", volumes),
    overlay && h("a", { class: "second", href: overlay.href, text: overlay.text }),
  ].filter(Boolean);
}
