// The page that a browser shows for a directory, built on the plain listing. The page of a group and that of a volume
// are loaded when it is known which of them this is.

import { enliven } from "./entries.js";
import { addFailure } from "./header.js";
import { addStyle, infoOf, join, main, path, preload } from "./server.js";

/** The scripts that show a volume, apart from those of every page. They import one another. */
const VOLUME_SCRIPTS = [
  "actions", "channel_controls", "channels", "colours", "contrast", "display", "gestures", "metadata", "navigation",
  "neuroglancer_link", "neuroglancer_state", "notes", "other_viewers", "overlay", "pixels", "plane_layout",
  "plane_view", "planes", "preview", "preview_controls", "readout", "snippets", "tile_plan", "tiles", "time_player",
  "value_statistics", "view_state", "viewport", "volume", "volume_page",
].map((name) => `${name}.js`);

/** Shows the page. Until then its styles hide it, so that nothing moves under the pointer. */
function reveal(listing) {
  if (main.dataset.arranged !== undefined) return;
  main.dataset.arranged = "";
  listing.restore();
}

async function show(info, listing) {
  const arranged = () => reveal(listing);
  if (info.kind !== "group") {
    preload(VOLUME_SCRIPTS);
    addStyle("preview.css");
    addStyle("display.css");
    // The levels are described while the scripts are on their way.
    for (const level of info.multiscale?.levels ?? []) infoOf(join(info.path, level.path)).catch(() => null);
    const { showVolume } = await import("./volume_page.js");
    if (await showVolume(info, arranged)) return;
  }
  const { showGroup } = await import("./group_page.js");
  await showGroup(info, listing, arranged);
}

async function start() {
  const described = infoOf(path);
  const listing = enliven("Contents");
  try {
    const info = await described.catch((error) => {
      throw new Error(`Details of this directory could not be loaded: ${error.message}`);
    });
    if (info.kind === "multiscale") main.querySelector(".contents h2").textContent = "Levels";
    await show(info, listing).catch((error) => {
      throw new Error(`Part of this page could not be loaded: ${error.message}`);
    });
  } catch (error) {
    addFailure(error.message);
  }
  reveal(listing);
  main.dataset.ready = "";
}

start();
