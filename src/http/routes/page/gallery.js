// Pictures of the containers of this server, or of the first volumes below this directory.

import * as describe from "./describe.js";
import { h } from "./dom.js";
import { natural } from "./entry_order.js";
import { directory, path } from "./server.js";
import { Subtree, below, isDrawable, nameOf } from "./subtree.js";
import { thumbnail } from "./thumbnail.js";

/** Maximum number of pictures, and number of entries among which volumes are searched for. */
const PICTURES = 8;
const SEARCHED = 200;
/** Number of entries that are counted in one container. */
const COUNTED = 2000;
/** Length of the longer side of a picture, in device pixels. */
const PICTURE_SIZE = 256;

/** Returns a path that can be broken after slashes and between the parts of names. */
function breakable(path) {
  return path.split(/(?<=[/_.-])/).flatMap((part) => [part, h("wbr")]).slice(0, -1);
}

function card(entry, title, facts) {
  const picture = h("span", { class: "picture", "aria-hidden": "true" });
  const detail = h("span", { class: "fact", text: facts });
  const link = h("a", { href: directory("n5", entry.path) }, picture, h("span", { class: "title" }, breakable(title)), detail);
  return { element: h("li", { "data-kind": entry.kind }, link), picture, detail };
}

/**
 * Adds the picture of a container's first volume to its card, and the shape of the container if it is an image, or else
 * the number of its datasets.
 */
async function complete({ picture, detail }, entry) {
  const subtree = new Subtree(entry.path, { limit: COUNTED });
  await subtree.more();
  const say = (text) => detail.append(`${detail.textContent && ", "}${text}`);
  const volumes = subtree.entries.filter(({ kind }) => kind === "dataset" || kind === "multiscale").length;
  const number = `${volumes.toLocaleString("en")}${subtree.done ? "" : " or more"}`;
  if (entry.dimensions) say(`${describe.shape(entry.dimensions)}, ${entry.data_type}`);
  else say(`${number} ${volumes === 1 && subtree.done ? "dataset" : "datasets"}`);
  const first = [entry, ...subtree.entries].find(isDrawable);
  if (first) picture.append(thumbnail(first.path, PICTURE_SIZE));
}

function ofContainers(containers) {
  const cards = containers.map((entry) => {
    const name = nameOf(entry.path);
    return card(entry, entry.title ?? name, entry.title && entry.title !== name ? name : "");
  });
  const fill = async () => {
    for (const [n, entry] of containers.entries()) await complete(cards[n], entry).catch(() => null);
  };
  fill();
  return cards;
}

/**
 * Returns the volumes to show: the first one of every directory directly below, then the second ones, so that a group
 * with many volumes does not hide the others.
 */
function selected(entries) {
  const volumes = entries.filter(isDrawable).sort((a, b) => natural(a.path, b.path));
  const counts = new Map();
  const ranks = new Map(volumes.map((entry) => {
    const [directory] = below(path, entry).split("/");
    const rank = counts.get(directory) ?? 0;
    counts.set(directory, rank + 1);
    return [entry, rank];
  }));
  return volumes.sort((a, b) => ranks.get(a) - ranks.get(b)).slice(0, PICTURES);
}

function ofVolumes(entries) {
  return selected(entries).map((entry) => {
    const place = below(path, entry);
    const facts = [entry.title && entry.title !== place ? place : null, describe.shape(entry.dimensions), entry.data_type];
    const made = card(entry, entry.title ?? place, facts.filter(Boolean).join(", "));
    made.picture.append(thumbnail(entry.path, PICTURE_SIZE));
    return made;
  });
}

/** Builds the gallery of a front page or of a container's root from its `children`; null if nothing can be shown. */
export async function gallery(children) {
  const containers = children.filter((entry) => entry.container);
  const isFrontPage = containers.length > 0;
  let cards;
  if (isFrontPage) {
    cards = ofContainers(containers.slice(0, 3 * PICTURES));
  } else {
    const all = new Subtree(path, { limit: SEARCHED });
    await all.more();
    cards = ofVolumes(all.entries);
  }
  if (cards.length === 0) return null;
  const heading = isFrontPage ? "Containers" : "Volumes";
  const hidden = isFrontPage ? containers.length - cards.length : 0;
  return h("section", { class: "gallery", "aria-label": heading },
    h("h2", { text: heading }), h("ul", {}, cards.map(({ element }) => element)),
    hidden > 0 ? h("p", { class: "note", text: `${hidden} more in the list below.` }) : null);
}
