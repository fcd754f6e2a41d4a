// Lines to copy: how other programs read this dataset.

import { copyButton, h } from "./dom.js";
import { directory, encodePath, rebase, token, url } from "./server.js";

/** Longest side of the plane that the examples read. */
const SIDE = 512;

/** What stands for an end of line somewhere, or for nothing that is seen. */
const UNSEEN = /[\u007f-\u009f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** A text as Python writes it. */
function quoted(text) {
  return JSON.stringify(text).replace(UNSEEN, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** A dictionary of texts as Python writes it. */
function python(members) {
  return `{${Object.entries(members).map(([key, text]) => `"${key}": ${quoted(text)}`).join(", ")}}`;
}

/** The names of the axes for a comment, which nothing stored may end. */
function commented(axes) {
  return axes.map((name, axis) => (/^[\p{L}\p{M}\p{N}_^' -]+$/u.test(name) ? name : `d${axis + 1}`));
}

/** An index of the middle plane: `:512` and `20`, an item per axis; and what is left, by name. */
function middle(volume) {
  const spatial = [...volume.axes.keys()].slice(0, 2);
  const items = volume.dimensions.map((n, axis) => (spatial.includes(axis) ? [0, Math.min(n, SIDE)] : Math.floor((n - 1) / 2)));
  const names = commented(volume.axes);
  return { items, names: spatial.map((axis) => names[axis]) };
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

/** TensorStore's path is the one before percent-encoding. */
function decode(pathname) {
  return decodeURIComponent(pathname);
}

function zarr(finest, names) {
  if (!finest.urls.zarr3) return null;
  const address = quoted(rebase(finest.urls.zarr3, finest).split("?")[0]);
  const options = token === null ? "" : `, storage_options={"params": ${python({ token })}}`;
  return `import zarr  # 3.0 or later, with fsspec and aiohttp

array = zarr.open_array(${address}, mode="r"${options})
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

function curl(finest, volume, { items }, window) {
  const slice = (format) => url("slice", finest.path, `select=${asQuery(items)}&format=${format}`);
  const whole = volume.dataType === "uint8" || volume.dataType === "uint16";
  const png = whole ? "png" : window ? `png&window=${window.join(",")}` : null;
  const lines = [
    ["a plane for NumPy", `curl -fsS -o plane.npy '${slice("npy")}'`],
    png && ["the same as an image", `curl -fsS -o plane.png '${slice(png)}'`],
    ["what is known about it", `curl -fsS '${url("info", finest.path)}'`],
    ["its attributes as stored", `curl -fsS '${directory("n5", finest.path).replace(/(\?|$)/, "attributes.json$1")}'`],
  ];
  return lines.filter(Boolean).map(([comment, command]) => `# ${comment}\n${command}\n`).join("");
}

function fiji(info) {
  const [address, query] = directory("n5", "").split("?");
  // Nothing in a name may end the macro's string.
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

/** A row of tabs; the arrow keys go from one to the next. */
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

/** The section. `window` is what is black and white, for images of types that have no obvious one. */
export function snippets(info, volume, { window, neuroglancer }) {
  const { finest } = volume;
  const read = middle(volume);
  const code = [
    ["TensorStore", "python", tensorstore(finest, volume, read)],
    ["Zarr", "python", zarr(finest, commented(volume.axes))],
    ["NumPy", "python", numpy(finest, volume, read)],
    ["curl", "sh", curl(finest, volume, read, window)],
    ["Fiji", "ijm", fiji(info)],
  ];
  const pages = code.filter(([, , text]) => text).map(([name, language, text]) => [
    name,
    h(
      "div",
      { class: "code" },
      h("pre", {}, h("code", { "data-tool": name, "data-language": language, text })),
      copyButton(`Copy the lines for ${name}`, () => text),
    ),
  ]);
  pages.push([
    "Addresses",
    h(
      "dl",
      { class: "addresses" },
      addresses(info, neuroglancer).map(([label, text]) =>
        h("div", {}, h("dt", { text: label }), h("dd", {}, h("code", { text }), copyButton(`Copy: ${label}`, () => text))),
      ),
    ),
  ]);
  return h("section", { class: "snippets card", "aria-label": "Read it elsewhere" }, h("h2", { text: "Read it elsewhere" }), tabs("Programs", pages));
}

