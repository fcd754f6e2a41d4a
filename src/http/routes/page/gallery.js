// Pictures of the containers of this server, or of the first volumes below this directory.

import * as describe from "./describe.js";
import { h } from "./dom.js";
import { natural } from "./finding.js";
import { directory, infoOf, path } from "./server.js";
import { Subtree, below, firstVolume, isDrawable, nameOf } from "./subtree.js";
import { thumbnail } from "./thumbnail.js";

/** Maximum number of pictures, and number of entries among which volumes are searched for. */
const PICTURES = 8;
const SEARCHED = 200;
/** Number of entries that are counted in one container. */
const COUNTED = 2000;

function card(entry, title, facts) {
  const picture = h("span", { class: "picture", "aria-hidden": "true" });
  const detail = h("span", { class: "fact", text: facts });
  const link = h("a", { href: directory("n5", entry.path) }, picture, h("span", { class: "title", text: title }), detail);
  return { element: h("li", { "data-kind": entry.kind }, link), picture, detail };
}

async function draw(picture, volume) {
  const drawn = volume === null ? null : await thumbnail(await infoOf(volume)).catch(() => null);
  if (drawn) picture.append(drawn);
}

/** Counts the datasets and pyramids of a container. */
async function count(entry) {
  const subtree = new Subtree(entry.path, { limit: COUNTED });
  await subtree.more();
  const volumes = subtree.entries.filter(({ kind }) => kind === "dataset" || kind === "multiscale").length;
  const number = `${volumes.toLocaleString("en")}${subtree.done ? "" : " or more"}`;
  return `${number} ${volumes === 1 && subtree.done ? "dataset" : "datasets"}`;
}

async function ofContainers(containers) {
  const cards = containers.map((entry) => card(entry, entry.title ?? nameOf(entry.path), nameOf(entry.path)));
  const fill = async () => {
    for (const [n, entry] of containers.entries()) {
      const text = await count(entry).catch(() => null);
      const name = nameOf(entry.path);
      cards[n].detail.textContent = [entry.title && entry.title !== name ? name : null, text].filter(Boolean).join(", ");
      await draw(cards[n].picture, isDrawable(entry) ? entry.path : await firstVolume(entry.path)).catch(() => null);
    }
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

async function ofVolumes(entries) {
  const volumes = selected(entries);
  const cards = volumes.map((entry) => {
    const place = below(path, entry);
    const facts = [entry.title && entry.title !== place ? place : null, describe.shape(entry.dimensions), entry.data_type];
    return card(entry, entry.title ?? place, facts.filter(Boolean).join(", "));
  });
  const fill = async () => {
    for (const [n, entry] of volumes.entries()) await draw(cards[n].picture, entry.path).catch(() => null);
  };
  fill();
  return cards;
}

/** Builds the gallery of the front page, or of a container's root; null if there is nothing to show. */
export async function gallery() {
  const children = new Subtree(path, { depth: 1, limit: SEARCHED });
  await children.more();
  const containers = children.entries.filter((entry) => entry.container);
  const isFrontPage = containers.length > 0;
  let cards;
  if (isFrontPage) {
    cards = await ofContainers(containers.slice(0, 3 * PICTURES));
  } else {
    const all = new Subtree(path, { limit: SEARCHED });
    await all.more();
    cards = await ofVolumes(all.entries);
  }
  if (cards.length === 0) return null;
  const heading = isFrontPage ? "Containers" : "Volumes";
  const hidden = isFrontPage ? containers.length - cards.length : 0;
  return h("section", { class: "gallery", "aria-label": heading },
    h("h2", { text: heading }), h("ul", {}, cards.map(({ element }) => element)),
    hidden > 0 ? h("p", { class: "note", text: `${hidden} more in the list below.` }) : null);
}
