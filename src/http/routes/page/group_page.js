// The page of a group: what its attributes say, pictures of what is below, and all of its volumes opened together.

import { about } from "./about.js";
import { titleOf } from "./attribute_texts.js";
import * as describe from "./describe.js";
import { h } from "./dom.js";
import { ZARR_ADVICE } from "./entry_facts.js";
import { gallery } from "./gallery.js";
import { addHeader, factsOf, rename } from "./header.js";
import { attributes } from "./metadata.js";
import { notes } from "./notes.js";
import { addStyle, main, path } from "./server.js";
import { isDrawable, nameOf } from "./subtree.js";

/** Maximum number of children of a group whose volumes are opened together. */
const CHILDREN = 40;

/** Time in milliseconds after which the list is shown without what is not known yet. */
const PATIENCE = 1000;

/** Names of groups that have labels. */
const LABELS = /(label|seg|mask|annotation)/i;

/** Names of children that may be parts of one image. */
const PART = /^(setup|timepoint|c)\d+$/;

/** Adds a section before the list or, if `isLate` says that the list must not move any more, after it. */
function place(section, isLate) {
  const contents = document.querySelector(".contents");
  if (isLate(contents)) contents.after(section);
  else contents.before(section);
}

/** Shows the children of a group as one image, if they are one: BigDataViewer's setups and time points, for example. */
async function addStack(info, names, actions) {
  if (!names.some((name) => PART.test(name))) return;
  const [{ stackOf }, { isViewable }] = await Promise.all([import("./stack.js"), import("./volume.js")]);
  const volume = await stackOf(info, names);
  if (!volume || !isViewable(volume)) return;
  const { names: channels, times } = volume.stack;
  main.querySelector(".subtitle").append(...factsOf([
    describe.shape(volume.dimensions.slice(0, volume.stack.rank)), volume.dataType, channels.length > 1 && `${channels.length} channels`,
    times.length > 1 && `${times.length} time points`,
  ]));
  const [{ Preview }, { ViewState }, { downloader }] = await Promise.all([
    import("./preview.js"), import("./view_state.js"), import("./actions.js"), addStyle("preview.css"), addStyle("display.css"),
  ]);
  const preview = new Preview(info, volume, new ViewState(volume), Promise.resolve(null), () => null);
  place(preview.element, (contents) => contents.matches(":hover, :focus-within"));
  actions.append(downloader(volume, preview));
}

/** Adds links that open the volumes among the children together, if they have the same axes or one has labels. */
async function addOpeners(children, actions) {
  const volumes = children.filter(isDrawable);
  if (volumes.length === 0 && children.length <= CHILDREN && children.some((entry) => !entry.container && LABELS.test(nameOf(entry.path)))) {
    const { imagesAndLabels, openers } = await import("./together.js");
    const paths = await imagesAndLabels(path);
    if (paths.length) actions.append(...(await openers(paths, true)));
    return;
  }
  const spaces = new Set(volumes.map(({ axes, units }) => JSON.stringify([axes, units?.map(Boolean)])));
  const hasLabels = volumes.some(({ volume }) => volume === "segmentation");
  if (children.length > CHILDREN || volumes.length < 2 || (spaces.size > 1 && !hasLabels)) return;
  const { openers } = await import("./together.js");
  actions.append(...(await openers(volumes.map((entry) => entry.path))));
}

/** Adds pictures of the containers or volumes below a front page. */
async function addGallery(info, children) {
  const pictures = await gallery(children);
  if (!pictures) return;
  place(pictures, () => main.dataset.arranged !== undefined);
  if (!info.container && pictures.getAttribute("aria-label") === "Containers" && !titleOf(info.attributes)) rename("N5 containers");
}

/** Adds the page of a group to its list. */
export async function showGroup(info, { names, described }, reveal) {
  await addStyle("group.css");
  const broken = info.problems.find((text) => text.startsWith("attributes.json "));
  const top = addHeader({ ...info, error: broken }, []);
  const actions = top.querySelector(".actions");
  if (info.store) {
    top.append(h("p", { class: "advice", text: `This is a Zarr ${info.store === "zarr2" ? "2" : "3"} store. ${ZARR_ADVICE}` }));
    // The list without script says the same.
    document.querySelector(".contents > p")?.remove();
  }
  if (broken) top.append(h("p", { class: "warning", role: "note", text: `${broken}. The list below may contain directories of blocks.` }));
  const card = about(info.attributes);
  if (card) top.after(card);
  const details = [notes({ ...info, problems: info.problems.filter((text) => text !== broken) }), attributes(info)].filter(Boolean);
  if (details.length) document.querySelector(".contents").after(h("section", { class: "card", "aria-label": "Metadata" }, details));
  const parts = described.then((children) => Promise.all([
    (path === "" || info.container) && addGallery(info, children).catch(() => null),
    addStack(info, names, actions).then(() => addOpeners(children, actions)),
  ]));
  setTimeout(reveal, PATIENCE);
  await parts.finally(reveal);
}
