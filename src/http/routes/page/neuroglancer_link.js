// Links that open volumes in Neuroglancer, and what to say where they cannot work.

import { stateOf, tellsToken } from "./neuroglancer_state.js";
import { isLoopback, root } from "./server.js";
import { isViewable } from "./volume.js";

export { together } from "./neuroglancer_state.js";

const PUBLIC = "https://neuroglancer-demo.appspot.com/";

/** Returns the URL of Neuroglancer: the server's own copy if it has one, otherwise the public one. */
export function viewerBase() {
  return "viewer" in document.querySelector("main").dataset ? new URL("viewer/", root).href : PUBLIC;
}

/**
 * Returns warnings about links to viewers on https pages elsewhere: `blocked`, a sentence, if they cannot read this
 * server; `tellsToken` if a link sends the token to another host. For this server's own viewer there are none.
 */
export function viewerAdvice() {
  if (viewerBase() !== PUBLIC) return {};
  return { blocked: publicViewersAreBlocked(), tellsToken };
}

/** Returns why a viewer on an https page elsewhere cannot read this server, and what to do; null if it can. */
export function publicViewersAreBlocked() {
  if (location.protocol !== "http:") return null;
  // A page served over https may not load from http, except, in most browsers, from the same machine.
  const isSafari = navigator.vendor.startsWith("Apple");
  if (isLoopback && !isSafari) return null;
  return "This server has no Neuroglancer of its own, and the public one cannot read it: "
    + (isLoopback ? "Safari lets no https page read from http. Use another browser, or" : "browsers let no https page read from http.")
    + (isLoopback ? " install" : " Install")
    + " a build of n5-server that contains Neuroglancer, or serve over https (docs/DEPLOYMENT.md, Viewer and TLS).";
}

/** Returns true if Neuroglancer can show the volume. */
export function isOpenable(info, volume) {
  return isViewable(volume) && (Boolean(info.urls.recommended) || info.readable?.neuroglancer === true);
}

/** Returns the link that opens the volumes at a view (see `stateOf`). For a private volume it contains the token. */
export function linkTo(volumes, view = null) {
  const encoded = encodeURIComponent(JSON.stringify(stateOf(volumes, view))).replace(/%3A/g, ":").replace(/%2C/g, ",").replace(/%2F/g, "/");
  return `${viewerBase()}#!${encoded}`;
}
