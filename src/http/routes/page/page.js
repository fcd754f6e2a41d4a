// The page that a browser shows for a directory, built on the plain listing.

import { fromStats } from "./contrast.js";
import * as describe from "./describe.js";
import { copyButton, h, once } from "./dom.js";
import { directories, enliven } from "./entries.js";
import { isOpenable, linkTo, sourceText, together, viewerAdvice } from "./neuroglancer_link.js";
import { Preview } from "./preview.js";
import { ask, directory, infoOf, join, path, statsOf, withToken } from "./server.js";
import { snippets } from "./snippets.js";
import { ITEM_BYTES, volumeOf } from "./volume.js";

/** Maximum number of children of a group that are checked for volumes, and of volumes that are opened together. */
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
        h("span", { class: "unseen", text: reads ? " can read it" : " cannot read it" })),
    );
    add("Readable as stored by", h("ul", { class: "readers" }, marks));
  }
  return h("dl", { class: "facts" }, rows);
}

function attributes(info) {
  if (Object.keys(info.attributes).length === 0) return null;
  let text = JSON.stringify(info.attributes, null, 2);
  const code = h("code", { text });
  // The stored text is copied, because JavaScript's numbers are exact only for integers up to 2^53.
  const read = async () => {
    const address = directory("n5", info.path).replace(/(\?|$)/, "attributes.json$1");
    text = await ask(address).then((response) => response.text()).catch(() => text);
    if (!JSON.rawJSON) return;
    const exact = (_, value, { source }) => (typeof value === "number" ? JSON.rawJSON(source) : value);
    code.textContent = JSON.stringify(JSON.parse(text, exact), null, 2);
  };
  return h(
    "details",
    { class: "attributes", on: { toggle: once(() => read().catch(() => null)) } },
    h("summary", { text: "Attributes" }),
    h("div", { class: "code" }, h("pre", { tabindex: 0, "aria-label": "Attributes" }, code), copyButton("Copy attributes", () => text)),
  );
}

function problems(info) {
  if (info.problems.length === 0) return null;
  return h(
    "details",
    { class: "problems" },
    h("summary", { text: `${info.problems.length} ${info.problems.length === 1 ? "compatibility note" : "compatibility notes"}` }),
    h("ul", {}, info.problems.map((text) => h("li", { text }))),
  );
}

/**
 * Builds the link to Neuroglancer, or a note that explains why there is none. Contrast is added when the statistics
 * arrive. Statistics are expensive for the server, so for several volumes they are requested only when the link is
 * hovered, focused or clicked.
 */
function opener(text, volumes) {
  const { blocked, tellsToken } = viewerAdvice();
  if (blocked) {
    return h("p", { class: "note", text: "The public Neuroglancer cannot read this server: browsers block an https page from loading data over http. "
      + "Build Neuroglancer into this server with viewer/build, or serve over https." });
  }
  const told = tellsToken ? `${text.replace("in Neuro", "in the public Neuro")} (sends it this page's token)` : text;
  const link = h("a", { class: "primary", href: linkTo(volumes), text: told });
  const improve = once(async () => {
    for (const one of volumes) {
      one.stats = await statsOf(one.info.path);
      link.href = linkTo(volumes);
    }
    link.dataset.complete = "";
  });
  if (volumes.length === 1) improve();
  else for (const wanted of ["pointerenter", "focus", "click"]) link.addEventListener(wanted, improve);
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

/** Shows the page of a dataset or pyramid. */
async function showVolume(info) {
  const volume = await volumeOf(info);
  if (!volume) return showGroup(info);
  const one = { info, volume, stats: null };
  const subtitle = [describe.shape(volume.dimensions), volume.dataType, describe.voxel(volume.resolution, volume.units)];
  const empty = volume.dimensions.includes(0);
  const large = !volume.dimensions.every(Number.isSafeInteger);
  const viewable = volume.rank > 0 && Object.hasOwn(ITEM_BYTES, volume.dataType) && !empty && !large;
  const openable = isOpenable(info, volume);
  main.prepend(header(info, subtitle, openable && opener("Open in Neuroglancer", [one])));
  const aside = h("aside", { class: "card", "aria-label": "Metadata" }, h("h2", { text: "Metadata" }), facts(info, volume), problems(info), attributes(info));
  const layout = h("div", { class: "columns" }, aside);
  document.querySelector(".contents").before(layout);
  const stats = viewable ? statsOf(info.path) : Promise.resolve(null);
  const why = empty ? "This volume has no elements." : large ? "This volume is too large to preview here." : "No preview is available for this volume.";
  if (viewable) layout.prepend(new Preview(info, volume, stats).element);
  else layout.prepend(h("section", { class: "preview card" }, h("p", { class: "note", text: why })));
  stats.then((known) => {
    const measured = fromStats(known);
    const options = { window: measured && measured.max > measured.min ? [measured.min, measured.max] : null };
    if (openable) options.neuroglancer = sourceText(info, volume, known);
    layout.after(snippets(info, volume, options));
    main.dataset.ready = "";
  });
  return undefined;
}

/** Shows the page of a group, with a link that opens all volumes among its children together. */
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
      if (volume && isOpenable(child, volume)) volumes.push({ info: child, volume, stats: null });
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
    title.after(h("p", { class: "note", role: "alert", text: `Details of this directory could not be loaded: ${error.message}` }));
    main.dataset.ready = "";
    return;
  }
  if (info.kind === "multiscale") main.querySelector(".contents h2").textContent = "Levels";
  try {
    await (info.kind === "group" ? showGroup(info) : showVolume(info));
  } catch (error) {
    const note = h("p", { class: "note", role: "alert", text: `Part of this page could not be loaded: ${error.message}` });
    if (title.closest("header")) title.closest("header").after(note);
    else {
      main.prepend(breadcrumb());
      title.after(note);
    }
    main.dataset.ready = "";
  }
}

start();
