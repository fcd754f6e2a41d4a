// What a list says about an entry of `/info?recursive=1`.

import * as describe from "./describe.js";
import { h } from "./dom.js";

/** Advice for a Zarr store among the groups of a container. */
export const ZARR_ADVICE = "This server reads N5 only. Serve the store with any web server that sends CORS headers, such as nginx.";

/** Returns the words for an entry: its kind and, if its metadata is broken, that. Each comes with its class. */
export function kindsOf(entry) {
  const { kind, store, container, error } = entry;
  const kinds = [];
  if (store) kinds.push([`Zarr ${store === "zarr2" ? "2" : "3"} store`, "foreign"]);
  else if (container) kinds.push(["container", "container"]);
  else if (kind !== "group" || !error) kinds.push([kind, kind]);
  if (container && kind !== "group") kinds.push([kind, kind]);
  if (error) kinds.push(["broken", "broken"]);
  return kinds;
}

/** Returns the facts about an entry as texts. */
export function factsOf(entry) {
  const { title, dimensions, data_type: type, size_bytes: size, levels, volume, resolution, units, axes, store, error } = entry;
  const facts = kindsOf(entry).map(([text]) => text);
  if (title && title !== entry.path.split("/").pop()) facts.push(title);
  if (dimensions) {
    facts.push(describe.shape(dimensions), type, describe.compression(entry));
    if (size !== undefined) facts.push(describe.bytes(size));
    if (levels) facts.push(`${levels} ${levels === 1 ? "level" : "levels"}`);
    facts.push(describe.voxel(resolution, units, axes));
    if (volume === "segmentation") facts.push("segmentation");
  }
  if (error) facts.push(error);
  else if (store) facts.push(ZARR_ADVICE);
  return facts.filter(Boolean);
}

/** Returns the text in which an entry is searched for: `label` and its facts, with the shape also as `64x48x20`. */
export function searchText(label, entry) {
  return `${label} ${factsOf(entry).join(" ")} ${(entry.dimensions ?? []).join("x")}`.toLowerCase();
}

/** Splits the text of a search field into words, all of which an entry must contain. */
export function wordsOf(text) {
  return text.toLowerCase().split(/\s+/).filter(Boolean);
}

/** Builds the elements that describe an entry. */
export function describeEntry(entry) {
  const kinds = kindsOf(entry);
  const { title } = entry;
  const facts = factsOf(entry).slice(kinds.length);
  const hasTitle = title && facts[0] === title;
  return [
    ...kinds.map(([text, name]) => h("span", { class: `kind ${name}`, text })),
    ...facts.map((text, n) => h("span", { class: hasTitle && n === 0 ? "name" : "fact", text })),
  ];
}
