// Code to copy that reads this dataset in other programs.

import { copyButton, h } from "./dom.js";
import { napari, viewerLinks } from "./other_viewers.js";
import { directory, encodePath, rebase, token, url } from "./server.js";

/** Maximum side length, in elements, of the plane that the examples read. */
const SIDE = 2048;

/** Characters that some programs treat as a line break, and invisible characters. */
const UNSEEN = /[\u007f-\u009f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** Returns a text as a Python string literal. */
export function quoted(text) {
  return JSON.stringify(text).replace(UNSEEN, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Returns an object of texts as a Python dictionary literal. */
function python(members) {
  return `{${Object.entries(members).map(([key, text]) => `"${key}": ${quoted(text)}`).join(", ")}}`;
}

/** Returns axis names that are safe in a code comment: a stored name could otherwise end the comment. */
export function commented(axes) {
  return axes.map((name, axis) => (/^[\p{L}\p{M}\p{N}_^' -]+$/u.test(name) ? name : `d${axis + 1}`));
}

/**
 * Returns the index of the visible part of a plane, such as `[0, 512]` or `20` per axis, and the names of the plane's
 * axes. Of a large part the middle is read. Without a view it is the middle plane.
 */
function selection(volume, view) {
  const axes = view?.axes ?? [...volume.axes.keys()].slice(0, 2);
  const items = volume.dimensions.map((n, axis) => {
    const [from, to] = view?.items[axis] ?? (axes.includes(axis) ? [0, n] : [Math.floor((n - 1) / 2), null]);
    if (to === null) return from;
    const start = Math.max(from, Math.floor((from + to - SIDE) / 2));
    return [start, Math.min(to, start + SIDE)];
  });
  const names = commented(volume.axes);
  // The axes of the result are in the order of the dataset.
  return { items, names: [...axes].sort((a, b) => a - b).map((axis) => names[axis]) };
}

const asPython = (items) => items.map((item) => (Array.isArray(item) ? `${item[0]}:${item[1]}` : item)).join(", ");
const asQuery = (items) => items.map((item) => (Array.isArray(item) ? `${item[0]}:${item[1]}` : item)).join(",");

function tensorstore(finest, volume, { items, names }) {
  const views = [["n5", finest.tensorstore !== null], ["as/gzip", Boolean(finest.urls.as)]];
  const view = views.find(([, there]) => there)?.[0];
  if (!view) return null;
  const address = new URL(directory(view, finest.path));
  const kvstore = { driver: "http", base_url: address.origin + (token === null ? "" : address.search), path: decode(address.pathname) };
  return `import tensorstore as ts

dataset = ts.open({
    "driver": "n5",
    "kvstore": ${python(kvstore)},
}).result()
plane = dataset[${asPython(items)}].read().result()
print(dataset.dtype.name, dataset.shape, plane.shape)  # plane[${names.join(", ")}]
`;
}

/** Decodes a URL path, because TensorStore takes paths without percent-encoding. */
function decode(pathname) {
  return decodeURIComponent(pathname);
}

/** Returns Python that opens a dataset with zarr; null if the server has no address for that. */
function zarrOf(finest) {
  if (!finest.urls.zarr3) return null;
  const address = quoted(rebase(finest.urls.zarr3, finest).split("?")[0]);
  const options = token === null ? "" : `, storage_options={"params": ${python({ token })}}`;
  return `zarr.open_array(${address}, mode="r"${options})`;
}

function zarr(finest, names) {
  const opened = zarrOf(finest);
  return opened && `import zarr  # 3.0 or later, with fsspec and aiohttp

array = ${opened}
print(array.dtype, array.shape)  # array[${[...names].reverse().join(", ")}]
`;
}

function numpy(finest, volume, { items, names }) {
  const address = url("slice", finest.path, `select=${asQuery(items)}&format=npy`);
  return `import io, urllib.request
import numpy as np

url = ${quoted(address)}
with urllib.request.urlopen(url) as answer:
    plane = np.load(io.BytesIO(answer.read()))
print(plane.dtype, plane.shape)  # plane[${names.join(", ")}]
`;
}

function curl(finest, volume, { items }) {
  const slice = (format) => url("slice", finest.path, `select=${asQuery(items)}&format=${format}`);
  const whole = volume.dataType === "uint8" || volume.dataType === "uint16";
  const lines = [
    ["a plane for NumPy", `curl -fsS -o plane.npy '${slice("npy")}'`],
    ["the same plane as an image", `curl -fsS -o plane.png '${slice(whole ? "png" : "png&window=auto")}'`],
    ["a description of the dataset", `curl -fsS '${url("info", finest.path)}'`],
    ["the attributes as stored", `curl -fsS '${directory("n5", finest.path).replace(/(\?|$)/, "attributes.json$1")}'`],
  ];
  return lines.map(([comment, command]) => `# ${comment}\n${command}\n`).join("");
}

function fiji(info) {
  const [address, query] = directory("n5", "").split("?");
  // A name could otherwise end the macro's string.
  const path = /^[\w./-]*$/.test(info.path) ? info.path : encodePath(info.path);
  return `// Plugins > New > Macro, or File > Import > HDF5/N5/Zarr/OME-NGFF... with the address after url=
run("HDF5/N5/Zarr/OME-NGFF ... ", "url=n5://${address}?${query ? `${query}&` : ""}${path} virtual");
`;
}

function addresses(info, neuroglancer) {
  const rows = [["Neuroglancer source", neuroglancer], ["N5", directory("n5", info.path)]];
  for (const [label, key] of [["Re-encoded N5", "as"], ["Zarr v2", "zarr2"], ["Zarr v3", "zarr3"], ["Precomputed", "precomputed"]]) {
    if (info.urls[key]) rows.push([label, rebase(info.urls[key], info)]);
  }
  return rows.filter(([, text]) => text);
}

/** Builds a row of tabs with its panels. The arrow keys move from tab to tab. */
function tabs(label, pages) {
  const buttons = pages.map(([name], n) =>
    h("button", { type: "button", role: "tab", id: `tab-${n}`, "aria-controls": `panel-${n}`, text: name }),
  );
  const panels = pages.map(([, content], n) =>
    h("div", { role: "tabpanel", id: `panel-${n}`, "aria-labelledby": `tab-${n}`, tabindex: 0 }, content),
  );
  const select = (chosen, focus) => {
    buttons.forEach((button, n) => {
      button.setAttribute("aria-selected", n === chosen);
      button.tabIndex = n === chosen ? 0 : -1;
      panels[n].hidden = n !== chosen;
    });
    if (focus) buttons[chosen].focus();
  };
  buttons.forEach((button, n) => {
    button.addEventListener("click", () => select(n));
    button.addEventListener("keydown", (event) => {
      const to = { ArrowRight: n + 1, ArrowLeft: n - 1, Home: 0, End: pages.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      select((to + pages.length) % pages.length, true);
    });
  });
  select(0);
  return [h("div", { role: "tablist", "aria-label": label }, buttons), ...panels];
}

/**
 * Builds the section: its `element`, and `show(view, neuroglancer)`, which fills it. `view` is the part that the
 * examples read (see `viewForOthers` of the preview), null for the middle plane. `neuroglancer` is the address of a source
 * for Neuroglancer; null if it cannot show the volume.
 */
export function snippets(info, volume) {
  const { finest } = volume;
  const examples = (read, limits = null) => [
    ["TensorStore", "python", tensorstore(finest, volume, read)],
    ["Zarr", "python", zarr(finest, commented(volume.axes))],
    ["NumPy", "python", numpy(finest, volume, read)],
    ["curl", "sh", curl(finest, volume, read)],
    ["Fiji", "ijm", fiji(info)],
    ["napari", "python", napari(info, volume, zarrOf(finest), quoted(info.path.split("/").pop() || "data"), limits)],
  ].filter(([, , text]) => text);
  const blocks = new Map(examples(selection(volume, null)).map(([name, language]) =>
    [name, h("code", { "data-tool": name, "data-language": language })]));
  const pages = [...blocks].map(([name, code]) => [
    name,
    h("div", { class: "code" }, h("pre", { tabindex: 0, "aria-label": name }, code), copyButton(`Copy the code for ${name}`, () => code.textContent)),
  ]);
  const list = h("dl", { class: "addresses" });
  pages.push(["URLs", list]);
  const links = viewerLinks(info);
  const element = h(
    "section", { class: "snippets card", "aria-label": "Open in other programs" },
    h("h2", { text: "Open in other programs" }), links.length > 0 && h("p", { class: "viewers" }, "On the web: ", links.flatMap((link, n) => (n > 0 ? [", ", link] : [link]))),
    tabs("Programs", pages),
  );
  let listed;
  const show = (view, neuroglancer) => {
    for (const [name, , text] of examples(selection(volume, view), view?.limits)) {
      const code = blocks.get(name);
      if (code.textContent !== text) code.textContent = text;
    }
    if (listed === neuroglancer) return;
    listed = neuroglancer;
    const row = ([label, text]) =>
      h("div", {}, h("dt", { text: label }), h("dd", {}, h("code", { text }), copyButton(`Copy ${label}`, () => text)));
    list.replaceChildren(...addresses(info, neuroglancer).map(row));
  };
  return { element, show };
}
