// The metadata of a directory: a table of facts, and its attributes as stored.

import * as describe from "./describe.js";
import { copyButton, h, once } from "./dom.js";
import { ask, directory } from "./server.js";

/** Names of the programs, and the address at which each can read converted data; z5 reads only files. */
const READERS = {
  neuroglancer: ["Neuroglancer", "recommended"], tensorstore: ["TensorStore", "as"], java: ["Java / Fiji", "as"], zarr: ["zarr-python 2", "zarr2"], z5: ["z5", null],
};

/** Builds the table of facts about a volume. */
export function facts(info, volume) {
  const { finest } = volume;
  const rows = [];
  const add = (label, value) => value && rows.push(h("div", {}, h("dt", { text: label }), h("dd", {}, value)));
  add("Shape", describe.shape(volume.dimensions));
  add("Axes", volume.hasNames && volume.axes.join(", "));
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
    const marks = Object.entries(info.readable).map(([key, reads]) => {
      const [name, view] = READERS[key] ?? [key, null];
      const isConverted = !reads && Boolean(info.urls[view]);
      const canRead = reads || isConverted;
      return h("li", { class: canRead ? "yes" : "no" }, h("span", { "aria-hidden": "true", text: canRead ? "✓ " : "✗ " }), name,
        isConverted ? ", converted" : h("span", { class: "unseen", text: reads ? " can read it as stored" : " cannot read it" }));
    });
    add("Readable by", h("ul", { class: "readers" }, marks));
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
