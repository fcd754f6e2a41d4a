// The hierarchy below this directory as a tree, whose branches are loaded when they are opened.

import { h } from "./dom.js";
import { describeEntry } from "./entry_facts.js";
import { natural } from "./finding.js";
import { directory, path } from "./server.js";
import { Subtree, nameOf } from "./subtree.js";

/** Number of entries of a branch that are shown at once. */
const BRANCH = 200;

function button(entry, branch) {
  const name = nameOf(entry.path);
  const element = h("button", { type: "button", class: "twist", "aria-expanded": "false", "aria-label": `What is below ${name}` });
  element.addEventListener("click", () => {
    const open = element.getAttribute("aria-expanded") === "false";
    element.setAttribute("aria-expanded", String(open));
    branch.hidden = !open;
    if (open && branch.children.length === 0) fill(branch, new Subtree(entry.path, { depth: 1, limit: BRANCH }));
  });
  return element;
}

function row(entry) {
  const branch = entry.children ? h("ul", { hidden: true }) : null;
  const link = h("a", { href: directory("n5", entry.path), text: nameOf(entry.path) });
  const line = h("div", {}, branch ? button(entry, branch) : h("span", { class: "twist" }), link, h("span", { class: "detail" }, describeEntry(entry)));
  return h("li", {}, line, branch);
}

/** Adds the next entries of a branch. */
async function fill(branch, subtree) {
  const waiting = h("li", { class: "waiting", text: "Loading …" });
  branch.append(waiting);
  const start = subtree.entries.length;
  try {
    await subtree.more();
  } catch (error) {
    waiting.textContent = `Not loaded: ${error.message}`;
    return;
  }
  const fresh = subtree.entries.slice(start);
  if (subtree.done && start === 0) fresh.sort((a, b) => natural(a.path, b.path));
  waiting.remove();
  branch.append(...fresh.map(row));
  if (!subtree.done) {
    const more = h("button", { type: "button", class: "quiet", text: "More" });
    const last = h("li", { class: "waiting" }, more);
    more.addEventListener("click", () => {
      last.remove();
      fill(branch, subtree);
    });
    branch.append(last);
  }
  if (branch.children.length === 0) branch.append(h("li", { class: "waiting", text: "Nothing to show" }));
}

/** Opens or closes the branch of the focused link. Returns true if the key was used. */
function turn(event) {
  const line = event.target.closest(".tree li");
  const twist = line?.querySelector(":scope > div > button.twist");
  const isOpen = twist?.getAttribute("aria-expanded") === "true";
  if (event.key === "ArrowRight" && twist && !isOpen) twist.click();
  else if (event.key === "ArrowLeft" && isOpen) twist.click();
  else if (event.key === "ArrowLeft") line?.parentElement.closest("li")?.querySelector("a").focus();
  else return false;
  return true;
}

/** Builds the tree. Its first branch is loaded at the first call of `show`. */
export function tree() {
  const branch = h("ul", { class: "tree", hidden: true, "aria-label": "Tree" });
  branch.addEventListener("keydown", (event) => {
    if (turn(event)) event.preventDefault();
  });
  const show = (visible) => {
    branch.hidden = !visible;
    if (visible && branch.children.length === 0) fill(branch, new Subtree(path, { depth: 1, limit: BRANCH }));
  };
  return { element: branch, show };
}
