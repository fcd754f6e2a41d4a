// The page of a directory: what the listing is for a person.

import { fromStats } from "./contrast.js";
import * as describe from "./describe.js";
import { copyButton, h } from "./dom.js";
import { directories, enliven } from "./entries.js";
import { linkTo, sourceText, together } from "./neuroglancer_link.js";
import { Preview } from "./preview.js";
import { infoOf, join, path, statsOf, withToken } from "./server.js";
import { snippets } from "./snippets.js";
import { ITEM_BYTES, volumeOf } from "./volume.js";

/** Most children of a group that are looked at for volumes to open together, and most volumes then opened. */
const CHILDREN = 40;
const LAYERS = 12;

const main = document.querySelector("main");
const title = main.querySelector("h1");

function breadcrumb() {
  const names = path ? path.split("/") : [];
  const up = (n) => withToken(n === 0 ? "./" : "../".repeat(n));
  const crumbs = ["n5-server", ...names].map((name, n) => {
    const last = n === names.length;
    const link = last ? h("span", { "aria-current": "page", text: name }) : h("a", { href: up(names.length - n), text: name });
    return h("li", {}, link);
  });
  return h("nav", { "aria-label": "Breadcrumb" }, h("ol", {}, crumbs));
}

function facts(info, volume) {
  const finest = volume?.finest ?? info;
  const rows = [];
  const add = (label, value) => value && rows.push(h("div", {}, h("dt", { text: label }), h("dd", {}, value)));
  if (volume) {
    add("Shape", `${describe.shape(volume.dimensions)}`);
    add("Axes", volume.axes.join(", "));
    add("Voxel size", describe.voxel(volume.resolution, volume.units));
    add("Data type", volume.dataType);
    add("Compression", describe.compression(finest));
    add("Block size", describe.shape(finest.block_size));
    add("Blocks", describe.shape(finest.grid));
    if (finest.size_bytes !== null) add("Uncompressed", describe.bytes(finest.size_bytes));
  }
  if (info.multiscale) {
    add("Convention", info.multiscale.convention);
    add("Levels", info.multiscale.levels.map((level) => h("div", { text: `${level.path}: ÷ ${level.factors.map(describe.number).join(", ")}` })));
  }
  if (info.readable) {
    const names = { neuroglancer: "Neuroglancer", tensorstore: "TensorStore", java: "Java / Fiji", zarr: "zarr-python 2", z5: "z5" };
    const marks = Object.entries(info.readable).map(([key, reads]) =>
      h("li", { class: reads ? "yes" : "no" }, h("span", { "aria-hidden": "true", text: reads ? "✓ " : "✗ " }), names[key] ?? key,
        h("span", { class: "unseen", text: reads ? " reads it" : " does not read it" })),
    );
    add("As stored, read by", h("ul", { class: "readers" }, marks));
  }
  return h("dl", { class: "facts" }, rows);
}

function attributes(info) {
  if (Object.keys(info.attributes).length === 0) return null;
  const text = JSON.stringify(info.attributes, null, 2);
  return h(
    "details",
    { class: "attributes" },
    h("summary", { text: "Attributes" }),
    h("div", { class: "code" }, h("pre", { tabindex: 0, "aria-label": "Attributes" }, h("code", { text })), copyButton("Copy the attributes", () => text)),
  );
}

function problems(info) {
  if (info.problems.length === 0) return null;
  return h(
    "details",
    { class: "problems" },
    h("summary", { text: `${info.problems.length} ${info.problems.length === 1 ? "remark" : "remarks"}` }),
    h("ul", {}, info.problems.map((text) => h("li", { text }))),
  );
}

/** The link to Neuroglancer; contrast is added to it once statistics are there. */
function opener(text, volumes) {
  const link = h("a", { class: "primary", href: linkTo(volumes), text });
  Promise.all(volumes.map(async (one) => (one.stats = await statsOf(one.info.path)))).then(() => {
    link.href = linkTo(volumes);
    link.dataset.complete = "";
  });
  return link;
}

function header(info, subtitle, ...actions) {
  const text = (key) => (typeof info.attributes[key] === "string" ? info.attributes[key] : null);
  const about = path ? text("title") ?? text("name") : null;
  const name = path.split("/").pop() || text("title") || "N5 container";
  title.textContent = name;
  return h(
    "header",
    { class: "top" },
    breadcrumb(),
    h("div", { class: "headline" },
      h("div", {}, title, h("p", { class: "subtitle" }, h("span", { class: `kind ${info.kind}`, text: info.kind }),
        about && about !== name ? h("span", { class: "about", text: about }) : "",
        ...subtitle.filter(Boolean).map((text) => h("span", { class: "fact", text })))),
      h("div", { class: "actions" }, actions)),
  );
}

/** A page of a dataset or pyramid. */
async function showVolume(info) {
  const volume = await volumeOf(info);
  if (!volume) return showGroup(info);
  const one = { info, volume, stats: null };
  const subtitle = [describe.shape(volume.dimensions), volume.dataType, describe.voxel(volume.resolution, volume.units)];
  const viewable = volume.rank > 0 && volume.dataType in ITEM_BYTES;
  main.prepend(header(info, subtitle, viewable && opener("Open in Neuroglancer", [one])));
  const aside = h("aside", { class: "card", "aria-label": "Metadata" }, h("h2", { text: "Metadata" }), facts(info, volume), problems(info), attributes(info));
  const layout = h("div", { class: "columns" }, aside);
  document.querySelector(".contents").before(layout);
  const empty = volume.dimensions.includes(0);
  const stats = viewable && !empty ? statsOf(info.path) : Promise.resolve(null);
  if (viewable && !empty) layout.prepend(new Preview(info, volume, stats).element);
  else layout.prepend(h("section", { class: "preview card" }, h("p", { class: "note", text: empty ? "There are no elements to show." : "There is no preview of this." })));
  stats.then((known) => {
    const measured = fromStats(known);
    const options = { window: measured && measured.max > measured.min ? [measured.min, measured.max] : null };
    if (viewable) options.neuroglancer = sourceText(info, volume, known);
    layout.after(snippets(info, volume, options));
    main.dataset.ready = "";
  });
  return undefined;
}

/** A page of a group; volumes among its children can be opened together. */
async function showGroup(info) {
  const top = header(info, []);
  main.prepend(top);
  const details = [problems(info), attributes(info)].filter(Boolean);
  if (details.length) document.querySelector(".contents").after(h("section", { class: "card", "aria-label": "Metadata" }, details));
  const names = directories();
  if (names.length > 0 && names.length <= CHILDREN) {
    const infos = await Promise.allSettled(names.map((name) => infoOf(join(path, name))));
    const found = infos.map((one) => one.value).filter((child) => child?.kind === "dataset" || child?.kind === "multiscale");
    const volumes = [];
    for (const child of found.slice(0, LAYERS + 1)) {
      const volume = await volumeOf(child).catch(() => null);
      if (volume && volume.dataType in ITEM_BYTES) volumes.push({ info: child, volume, stats: null });
    }
    if (volumes.length <= LAYERS && together(volumes)) top.querySelector(".actions").append(opener("Open all in Neuroglancer", volumes));
  }
  main.dataset.ready = "";
}

async function start() {
  enliven("Contents");
  let info;
  try {
    info = await infoOf(path);
  } catch (error) {
    main.prepend(breadcrumb());
    title.after(h("p", { class: "note", role: "alert", text: `Nothing more is known about this directory: ${error.message}` }));
    main.dataset.ready = "";
    return;
  }
  if (info.kind === "multiscale") main.querySelector(".contents h2").textContent = "Levels";
  await (info.kind === "group" ? showGroup(info) : showVolume(info));
}

start();
