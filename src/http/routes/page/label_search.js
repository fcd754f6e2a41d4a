// Segmentations that may belong to an image but are not beside it: elsewhere in its container or in another one.

import { infoOf } from "./server.js";
import { Subtree, isDrawable } from "./subtree.js";

/** Maximum number of entries that are searched. */
const SEARCHED = 2000;
/** Maximum number of segmentations that are returned. */
const FOUND = 24;

const parentOf = (path) => path.split("/").slice(0, -1).join("/");

/** Returns the path of the container that a directory belongs to; empty for the root of the server. */
async function containerOf(path) {
  for (let at = path; at !== ""; at = parentOf(at)) if ((await infoOf(at)).container) return at;
  return "";
}

/** Returns the entries of segmentations below `root`, apart from those beside the image or inside it. */
async function below(root, image) {
  const subtree = new Subtree(root, { limit: SEARCHED });
  await subtree.more();
  const parent = parentOf(image.path);
  return subtree.entries.filter((entry) => entry.volume === "segmentation" && isDrawable(entry)
    && parentOf(entry.path) !== parent && !`${entry.path}/`.startsWith(`${image.path}/`));
}

/**
 * Returns the paths of segmentations elsewhere: in the image's container or, if it has none, anywhere on the server.
 * Those with the image's units come first.
 */
export async function labelsElsewhere(image, volume) {
  const root = await containerOf(image.path);
  let found = await below(root, image);
  if (found.length === 0 && root !== "") found = await below("", image);
  const units = volume.units.filter((_, axis) => axis !== volume.channel).join();
  const isComparable = (entry) => entry.units?.join() === units;
  found.sort((a, b) => isComparable(b) - isComparable(a));
  return found.slice(0, FOUND).map(({ path }) => path);
}
