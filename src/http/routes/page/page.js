// The page that a browser shows for a directory, built on the plain listing.

import { about, titleOf } from "./about.js";
import { fromStats } from "./value_statistics.js";
import * as describe from "./describe.js";
import { copyButton, h, once } from "./dom.js";
import { directories, enliven } from "./entries.js";
import { ZARR_ADVICE, kindsOf } from "./entry_facts.js";
import { gallery } from "./gallery.js";
import { isOpenable, linkTo, sourceText, together, viewerAdvice } from "./neuroglancer_link.js";
import { invalidSize, notes } from "./notes.js";
import { overlayOf } from "./overlay.js";
import { Preview } from "./preview.js";
import { ask, directory, infoOf, join, path, statsOf, withToken } from "./server.js";
import { snippets } from "./snippets.js";
import { stackOf } from "./stack.js";
import { ViewState } from "./view_state.js";
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
    add("Voxel size", describe.voxelSize(volume));
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

/**
 * Builds the link to Neuroglancer, or a note that explains why there is none. Contrast is added when the statistics
 * arrive, from `statsOfOne` or, for several volumes, when the link is hovered, focused or clicked, because statistics
 * are expensive for the server. With `viewOf`, the link opens the view that it returns.
 */
function opener(text, volumes, { statsOfOne = null, state = null, viewOf = () => null } = {}) {
  const { blocked, tellsToken } = viewerAdvice();
  if (blocked) return h("p", { class: "note", text: blocked });
  const told = tellsToken ? `${text.replace("in Neuro", "in the public Neuro")} (sends it this page's token)` : text;
  const link = h("a", { class: "primary", href: linkTo(volumes), text: told });
  const show = () => (link.href = linkTo(volumes, viewOf()));
  const improve = once(async () => {
    for (const one of volumes) {
      one.stats = await (statsOfOne ?? statsOf(one.info.path));
      show();
    }
    link.dataset.complete = "";
  });
  state?.subscribe(later(show));
  if (statsOfOne) improve();
  else for (const wanted of ["pointerenter", "focus", "click"]) link.addEventListener(wanted, improve);
  return link;
}

/** Builds the button that opens the dialog for downloads. */
function downloader(volume, preview) {
  let dialog = null;
  const open = async () => {
    dialog ??= import("./download.js").then(({ Download }) => new Download(volume, preview));
    (await dialog).open();
  };
  return h("button", { type: "button", class: "second", text: "Download…", on: { click: open } });
}

/** Returns a function that calls `f` soon, once for many calls. */
function later(f, delay = 150) {
  let timer = null;
  return () => {
    timer ??= setTimeout(() => {
      timer = null;
      f();
    }, delay);
  };
}

function header(info, subtitle, ...actions) {
  const own = titleOf(info.attributes);
  const about = path ? own : null;
  const name = path.split("/").pop() || own || "N5 container";
  title.textContent = name;
  document.title = path ? `${name} – n5-server` : name;
  // Broken metadata of a group is said with its reason elsewhere on the page.
  const kinds = kindsOf({ ...info, error: undefined });
  return h(
    "header",
    { class: "top" },
    breadcrumb(),
    h("div", { class: "headline" },
      h("div", {}, title, h("p", { class: "subtitle" }, kinds.map(([text, kind]) => h("span", { class: `kind ${kind}`, text })),
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
  const subtitle = [describe.shape(volume.dimensions), volume.dataType, `voxel size ${describe.voxelSize(volume)}`.replace("voxel size unknown", "unknown voxel size")];
  const empty = volume.dimensions.includes(0);
  const large = !volume.dimensions.every(Number.isSafeInteger);
  const viewable = volume.rank > 0 && Object.hasOwn(ITEM_BYTES, volume.dataType) && !empty && !large;
  const openable = isOpenable(info, volume);
  const invalid = invalidSize(info);
  const state = viewable ? new ViewState(volume) : null;
  // Statistics take the server's processors. The first picture comes first.
  let begin = null;
  const firstPicture = new Promise((resolve) => (begin = resolve));
  setTimeout(begin, 4000);
  const stats = viewable ? firstPicture.then(() => statsOf(info.path)) : openable ? statsOf(info.path) : Promise.resolve(null);
  const preview = !viewable ? null : new Preview(info, volume, state, stats, begin);
  const viewOf = () => (preview ? preview.viewForOthers() : null);
  main.prepend(header(info, subtitle, openable && opener("Open in Neuroglancer", [one], { statsOfOne: stats, state, viewOf }),
    preview && downloader(volume, preview)));
  if (invalid) main.querySelector("header.top").append(h("p", { class: "warning", role: "note", text: invalid }));
  const aside = h("aside", { class: "card", "aria-label": "Metadata" }, h("h2", { text: "Metadata" }), facts(info, volume), notes(info), attributes(info));
  const layout = h("div", { class: "columns" }, aside);
  document.querySelector(".contents").before(layout);
  const why = empty ? "This volume has no elements." : large ? "This volume is too large to preview here." : "No preview is available for this volume.";
  layout.prepend(preview ? preview.element : h("section", { class: "preview card" }, h("p", { class: "note", text: why })));
  stats.then((known) => {
    const measured = fromStats(known);
    const options = { window: measured && measured.max > measured.min ? [measured.min, measured.max] : null };
    if (openable) options.neuroglancer = sourceText(info, volume, known);
    const code = snippets(info, volume, options, viewOf());
    layout.after(code.element);
    state?.subscribe(later(() => code.show(viewOf())));
    main.dataset.ready = "";
  });
  return undefined;
}

/** Shows the children of a group as one image, if they are one: BigDataViewer's setups and time points, for example. */
async function showStack(info, names) {
  const volume = await stackOf(info, names);
  if (!volume || volume.dimensions.includes(0) || !volume.dimensions.every(Number.isSafeInteger) || !Object.hasOwn(ITEM_BYTES, volume.dataType)) return;
  const { names: channels, times } = volume.stack;
  const facts = [
    describe.shape(volume.dimensions.slice(0, volume.stack.rank)), volume.dataType, channels.length > 1 && `${channels.length} channels`,
    times.length > 1 && `${times.length} time points`,
  ];
  main.querySelector(".subtitle").append(...facts.filter(Boolean).map((text) => h("span", { class: "fact", text })));
  const preview = new Preview(info, volume, new ViewState(volume), Promise.resolve(null), () => null);
  document.querySelector(".contents").before(preview.element);
  main.querySelector(".actions").append(downloader(volume, preview));
}

/** Shows pictures of the containers or volumes below a front page. */
async function showPictures(info) {
  const pictures = await gallery();
  if (!pictures) return;
  document.querySelector(".contents").before(pictures);
  if (!info.container && pictures.getAttribute("aria-label") === "Containers" && !titleOf(info.attributes)) title.textContent = "N5 containers";
}

/** Shows the page of a group, with a link that opens all volumes among its children together. */
async function showGroup(info) {
  const top = header(info, []);
  main.prepend(top);
  if (info.store) top.append(h("p", { class: "advice", text: `This is a Zarr ${info.store === "zarr2" ? "2" : "3"} store. ${ZARR_ADVICE}` }));
  const card = about(info.attributes);
  if (card) top.after(card);
  if (path === "" || info.container) showPictures(info).catch(() => null);
  const details = [notes(info), attributes(info)].filter(Boolean);
  if (details.length) document.querySelector(".contents").after(h("section", { class: "card", "aria-label": "Metadata" }, details));
  const names = directories();
  await showStack(info, names);
  if (names.length > 0 && names.length <= CHILDREN) {
    const infos = await Promise.allSettled(names.map((name) => infoOf(join(path, name))));
    const found = infos.map((one) => one.value).filter((child) => child?.kind === "dataset" || child?.kind === "multiscale");
    const volumes = [];
    for (const child of found.slice(0, LAYERS + 1)) {
      const volume = await volumeOf(child).catch(() => null);
      if (volume && isOpenable(child, volume)) volumes.push({ info: child, volume, stats: null });
    }
    if (volumes.length <= LAYERS && together(volumes)) top.querySelector(".actions").append(opener("Open all in Neuroglancer", volumes));
    const overlay = overlayOf(volumes);
    if (overlay) top.querySelector(".actions").append(h("a", { class: "second", href: overlay.href, text: overlay.text }));
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
