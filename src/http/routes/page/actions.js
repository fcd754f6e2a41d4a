// The link that opens volumes in Neuroglancer, and the button that downloads a part of one.

import { h, later, once } from "./dom.js";
import { linkTo, viewerAdvice } from "./neuroglancer_link.js";
import { addStyle, statsOf } from "./server.js";

/**
 * Builds the link to Neuroglancer, or a note that explains why there is none. Contrast is added when the statistics
 * arrive, from `statsOfOne` or, for several volumes, when the link is hovered, focused or clicked, because statistics
 * are expensive for the server. With `viewOf`, the link opens the view that it returns.
 */
export function opener(text, volumes, { statsOfOne = null, state = null, viewOf = () => null } = {}) {
  const { blocked, tellsToken } = viewerAdvice();
  if (blocked) return h("details", { class: "note" }, h("summary", { text: "Neuroglancer is not available here. Why?" }), h("p", { text: blocked }));
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

const CAPTION = "Download…";

/** Builds the button that opens the dialog for downloads. */
export function downloader(volume, preview) {
  let dialog = null;
  const load = async () => {
    const [{ Download }] = await Promise.all([import("./download.js"), addStyle("download.css")]);
    return new Download(volume, preview);
  };
  const open = async () => {
    dialog ??= load();
    const opened = await dialog.catch(() => null);
    button.textContent = opened ? CAPTION : "Not loaded, try again";
    if (opened) opened.open();
    else dialog = null;
  };
  const button = h("button", { type: "button", class: "second", text: CAPTION, on: { click: open } });
  return button;
}
