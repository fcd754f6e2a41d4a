// The page of a dataset or pyramid: a preview, its metadata, and how other programs open it.

import { downloader, opener } from "./actions.js";
import * as describe from "./describe.js";
import { h, later } from "./dom.js";
import { addHeader } from "./header.js";
import { attributes, facts } from "./metadata.js";
import { isOpenable } from "./neuroglancer_link.js";
import { sourceOf } from "./neuroglancer_state.js";
import { invalidSize, notes } from "./notes.js";
import { Preview } from "./preview.js";
import { addStyle, statsOf } from "./server.js";
import { snippets } from "./snippets.js";
import { ViewState } from "./view_state.js";
import { isViewable, volumeOf } from "./volume.js";

/** Time in milliseconds after which statistics are requested although there is no picture. */
const FIRST_PICTURE = 4000;

function whyNoPreview({ dimensions }) {
  if (dimensions.includes(0)) return "This volume has no elements.";
  if (!dimensions.every(Number.isSafeInteger)) return "This volume is too large to preview here.";
  return "No preview is available for this volume.";
}

/** Adds the page of a dataset or pyramid to its list. Returns false, and adds nothing, if there is no volume. */
export async function showVolume(info, reveal) {
  const [volume] = await Promise.all([volumeOf(info), addStyle("preview.css"), addStyle("display.css")]);
  if (!volume) return false;
  const one = { info, volume, stats: null };
  const size = describe.voxelSize(volume);
  const canView = isViewable(volume);
  const canOpen = isOpenable(info, volume);
  const state = canView ? new ViewState(volume) : null;
  // Statistics take the server's processors. The first picture comes first.
  let begin = null;
  const firstPicture = new Promise((resolve) => (begin = resolve));
  setTimeout(begin, FIRST_PICTURE);
  const stats = canView ? firstPicture.then(() => statsOf(info.path)) : Promise.resolve(null);
  const preview = canView ? new Preview(info, volume, state, stats, begin) : null;
  const viewOf = () => (preview ? preview.viewForOthers() : null);
  const sizeText = size === "unknown" ? "unknown voxel size" : `voxel size ${size}`;
  const top = addHeader(info, [describe.shape(volume.dimensions), volume.dataType, sizeText],
    canOpen && opener("Open in Neuroglancer", [one], { statsOfOne: stats, state, viewOf }), preview && downloader(volume, preview));
  const invalid = invalidSize(info);
  if (invalid) top.append(h("p", { class: "warning", role: "note", text: invalid }));
  const code = snippets(info, volume);
  const showCode = (known) => code.show(viewOf(), canOpen ? sourceOf(info, volume, known) : null);
  const contents = document.querySelector(".contents");
  contents.before(
    h("div", { class: "columns" },
      preview ? preview.element : h("section", { class: "preview card" }, h("p", { class: "note", text: whyNoPreview(volume) })),
      h("aside", { class: "card", "aria-label": "Metadata" }, h("h2", { text: "Metadata" }), facts(info, volume), notes(info, canView), attributes(info))),
    code.element,
  );
  showCode(null);
  reveal();
  const known = await stats;
  showCode(known);
  state?.subscribe(later(() => showCode(known)));
  return true;
}
