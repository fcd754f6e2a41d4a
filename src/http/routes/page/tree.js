// The hierarchy below this directory as a tree, whose branches are loaded when they are opened.

import { h } from "./dom.js";
import { describeEntry } from "./entry_facts.js";
import { natural } from "./entry_order.js";
import { directory, path } from "./server.js";
import { Subtree, nameOf } from "./subtree.js";

/** Number of entries of a branch that are shown at once. */
const BRANCH = 200;

/** Builds a row of a branch that has a button and, before it, a text. */
function further(text, caption, act) {
  const button = h("button", { type: "button", class: "quiet", text: caption });
  const row = h("li", { class: "waiting" }, text, button);
  button.addEventListener("click", () => {
    row.remove();
    act();
  });
  return row;
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

/** The tree. Its first branch is loaded at the first call of `show`. */
export class Tree {
  /** `open` has the paths whose branches are open at first. `changed(open)` is called when the reader changes that. */
  constructor(open, changed) {
    this.open = new Set(open);
    this.changed = changed;
    this.element = h("ul", { class: "tree", hidden: true, "aria-label": "Tree" });
    this.element.addEventListener("keydown", (event) => {
      if (turn(event)) event.preventDefault();
    });
  }

  show(isVisible) {
    this.element.hidden = !isVisible;
    if (isVisible && this.element.children.length === 0) this.fill(this.element, new Subtree(path, { depth: 1, limit: BRANCH }));
  }

  /** Adds the next entries of a branch. */
  async fill(branch, subtree) {
    const waiting = h("li", { class: "waiting", text: "Loading …" });
    branch.append(waiting);
    const start = subtree.entries.length;
    const error = await subtree.more().catch((problem) => problem);
    waiting.remove();
    if (error) {
      branch.append(further(`Not loaded: ${error.message} `, "Try again", () => this.fill(branch, subtree)));
      return;
    }
    const fresh = subtree.entries.slice(start);
    if (subtree.done && start === 0) fresh.sort((a, b) => natural(a.path, b.path));
    branch.append(...fresh.map((entry) => this.row(entry)));
    if (!subtree.done) branch.append(further("", "More", () => this.fill(branch, subtree)));
    if (branch.children.length === 0) branch.append(h("li", { class: "waiting", text: "Nothing to show" }));
  }

  row(entry) {
    const name = nameOf(entry.path);
    const branch = entry.children ? h("ul", { hidden: true }) : null;
    const twist = branch ? this.twist(entry, name, branch) : h("span", { class: "twist" });
    const link = h("a", { href: directory("n5", entry.path), text: name });
    return h("li", {}, h("div", {}, twist, link, h("span", { class: "detail" }, describeEntry(entry))), branch);
  }

  /** Builds the button that opens and closes a branch. */
  twist({ path: place }, name, branch) {
    const button = h("button", { type: "button", class: "twist", "aria-label": `What is below ${name}` });
    const show = () => {
      const isOpen = this.open.has(place);
      button.setAttribute("aria-expanded", String(isOpen));
      branch.hidden = !isOpen;
      if (isOpen && branch.children.length === 0) this.fill(branch, new Subtree(place, { depth: 1, limit: BRANCH }));
    };
    button.addEventListener("click", () => {
      if (!this.open.delete(place)) this.open.add(place);
      this.changed([...this.open]);
      show();
    });
    show();
    return button;
  }
}
