// The metadata of a directory: a table of facts, and its attributes as stored.

import * as describe from "./describe.js";
import { copyButton, h, once } from "./dom.js";
import { ask, directory } from "./server.js";

const READERS = { neuroglancer: "Neuroglancer", tensorstore: "TensorStore", java: "Java / Fiji", zarr: "zarr-python 2", z5: "z5" };

/** Builds the table of facts about a volume. */
export function facts(info, volume) {
  const { finest } = volume;
  const rows = [];
  const add = (label, value) => value && rows.push(h("div", {}, h("dt", { text: label }), h("dd", {}, value)));
  add("Shape", describe.shape(volume.dimensions));
  add("Axes", volume.axes.join(", "));
  add("Voxel size", describe.voxelSize(volume));
  add("Data type", volume.dataType);
  add("Compression", describe.compression(finest));
  add("Block size", describe.shape(finest.block_size));
  add("Blocks", describe.shape(finest.grid));
  if (finest.size_bytes !== null) add("Uncompressed", describe.bytes(finest.size_bytes));
  if (info.multiscale) {
    add("Convention", info.multiscale.convention);
    add("Levels", info.multiscale.levels.map((level) => h("div", { text: `${level.path}: ÷ ${level.factors.map(describe.number).join(", ")}` })));
  }
  if (info.readable) {
    const marks = Object.entries(info.readable).map(([key, reads]) =>
      h("li", { class: reads ? "yes" : "no" }, h("span", { "aria-hidden": "true", text: reads ? "✓ " : "✗ " }), READERS[key] ?? key,
        h("span", { class: "unseen", text: reads ? " can read it" : " cannot read it" })),
    );
    add("Readable as stored by", h("ul", { class: "readers" }, marks));
  }
  return h("dl", { class: "facts" }, rows);
}

/** Builds the attributes, closed at first; null if there are none. */
export function attributes(info) {
  if (Object.keys(info.attributes).length === 0) return null;
  let text = JSON.stringify(info.attributes, null, 2);
  const code = h("code", { text });
  // The stored text is copied, because JavaScript's numbers are exact only for integers up to 2^53.
  const read = async () => {
    const address = directory("n5", info.path).replace(/(\?|$)/, "attributes.json$1");
    text = await ask(address).then((response) => response.text());
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
