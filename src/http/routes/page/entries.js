// The listing of a directory: details and pictures of its entries, their order, and a search.

import { choice, h } from "./dom.js";
import { describeEntry, factsOf, searchText } from "./entry_facts.js";
import { Finding, natural, wordsOf } from "./finding.js";
import { infoOf, join, path, token, withToken } from "./server.js";
import { Subtree, firstVolume, isDrawable, nameOf } from "./subtree.js";
import { thumbnail } from "./thumbnail.js";
import { tree } from "./tree.js";

/** Maximum number of concurrent requests for pictures. */
const AT_ONCE = 4;
/** Number of rows that are added to the page at once. */
const CHUNK = 200;

let items = [];

/** Returns the names of the directories in the listing. */
export function directories() {
  return items.filter((item) => item.name !== null).map((item) => item.name);
}

function toItem(element) {
  const link = element.querySelector("a");
  if (token !== null) link.setAttribute("href", withToken(link.getAttribute("href")));
  // Uses the text of the link, because its URL may end in a token.
  const text = link.textContent;
  const name = text.endsWith("/") ? text.slice(0, -1) : null;
  return { element, link, name, label: text, text: text.toLowerCase(), entry: null, detail: null, picture: null };
}

/** Adds the places for details and a picture to a row. */
function furnish(item) {
  item.detail = h("span", { class: "detail" });
  item.picture = h("span", { class: "picture", "aria-hidden": "true" });
  item.element.append(item.picture, item.detail);
  if (item.name === null) {
    item.element.dataset.kind = "file";
    item.detail.append(h("span", { class: "kind file", text: "JSON" }));
  } else if (item.entry) describe(item);
}

function describe(item) {
  item.element.dataset.kind = item.entry.kind;
  item.detail?.replaceChildren(...describeEntry(item.entry));
}

/** Returns the description of an item in the form of an entry of `/info?recursive=1`, from its `/info`. */
async function entryOf(item) {
  const info = await infoOf(join(path, item.name));
  const finest = info.kind === "multiscale" ? await infoOf(join(info.path, info.multiscale.levels[0].path)).catch(() => null) : info;
  const name = info.attributes.name ?? (info.kind === "group" ? info.attributes.title : null);
  return {
    ...finest, ...info, title: typeof name === "string" ? name : null, levels: info.multiscale?.levels.length,
    dimensions: finest?.dimensions ?? undefined, data_type: finest?.data_type, compression: finest?.compression,
    size_bytes: finest?.size_bytes ?? undefined,
  };
}

/** Loads the descriptions of all items, page by page and only as far as they are needed. */
class Details {
  constructor(after) {
    this.subtree = new Subtree(path, { depth: 1, levels: true, after: after === null ? null : join(path, after) });
    this.byName = new Map(items.filter((item) => item.name !== null).map((item) => [item.name, item]));
    this.count = 0;
    this.changed = () => {};
  }

  async more() {
    await this.subtree.more();
    for (const entry of this.subtree.entries.slice(this.count)) {
      const item = this.byName.get(nameOf(entry.path));
      if (!item) continue;
      item.entry = entry;
      item.text = searchText(item.label, entry);
      if (item.detail) describe(item);
    }
    this.count = this.subtree.entries.length;
    this.changed();
  }

  /** Loads the description of one item. */
  async of(item) {
    while (!item.entry && !this.subtree.done) await this.more();
    if (item.entry) return;
    item.entry = await entryOf(item);
    describe(item);
  }

  async all() {
    while (!this.subtree.done && this.count < items.length + 1000) await this.more();
  }
}

/** Describes rows when they come into view, and adds a picture of their volume or of the first volume below. */
function whenSeen(details) {
  const waiting = [];
  const rows = new WeakMap();
  let running = 0;
  const next = async () => {
    if (waiting.length === 0 || running >= AT_ONCE) return;
    running += 1;
    const item = waiting.shift();
    await details.of(item).catch(() => null);
    const { entry } = item;
    if (entry && !entry.store && item.picture.childElementCount === 0) {
      const volume = isDrawable(entry) ? entry.path : entry.kind === "group" && !entry.error ? await firstVolume(entry.path) : null;
      const picture = volume === null ? null : await infoOf(volume).then(thumbnail).catch(() => null);
      if (picture) item.picture.append(picture);
    }
    running -= 1;
    next();
  };
  const observer = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target } of seen) {
      if (!isIntersecting) continue;
      observer.unobserve(target);
      waiting.push(rows.get(target));
      next();
    }
  }, { rootMargin: "200px" });
  return (item) => {
    if (item.name === null) return;
    rows.set(item.element, item);
    observer.observe(item.element);
  };
}

const elements = (entry) => (entry?.dimensions ?? []).reduce((product, n) => product * n, 1);
const compareLists = (a, b) => {
  const n = a.findIndex((value, index) => value !== b[index]);
  return n < 0 ? a.length - b.length : a[n] - (b[n] ?? -1);
};

/** Orders of the list: how two entries with a description compare. Entries without one come last. */
const ORDERS = {
  name: ["Name", null],
  kind: ["Kind", (a, b) => natural(factsOf(a)[0] ?? "", factsOf(b)[0] ?? "")],
  shape: ["Shape", (a, b) => compareLists(a.dimensions ?? [], b.dimensions ?? []), (entry) => entry.dimensions],
  type: ["Data type", (a, b) => natural(a.data_type ?? "", b.data_type ?? ""), (entry) => entry.data_type],
  size: ["Size", (a, b) => Number(a.size_bytes ?? elements(a)) - Number(b.size_bytes ?? elements(b)), (entry) => entry.dimensions],
};

/** Sorts the items by name, or by their descriptions where they have what the order needs. */
function sorted(order, descending) {
  const byName = (a, b) => (a.name === null) - (b.name === null) || natural(a.label, b.label);
  const [, compare, has = () => true] = ORDERS[order];
  const sign = descending ? -1 : 1;
  const byOrder = (a, b) => {
    const known = Number(Boolean(b.entry && has(b.entry))) - Number(Boolean(a.entry && has(a.entry)));
    return known || (a.entry && b.entry && has(a.entry) ? sign * compare(a.entry, b.entry) : 0) || byName(a, b);
  };
  const inOrder = compare ? byOrder : (a, b) => (a.name === null) - (b.name === null) || sign * natural(a.label, b.label);
  const isSorted = items.every((item, n) => n === 0 || inOrder(items[n - 1], item) <= 0);
  return isSorted ? items : [...items].sort(inOrder);
}

/** Builds the link to the first page of a listing that has several pages. */
function fromStart() {
  const blocks = new URLSearchParams(location.search).get("blocks");
  return h("a", { href: withToken(blocks === null ? "./" : `./?blocks=${encodeURIComponent(blocks)}`), text: "Back to the first page" });
}

/** Shows the first rows of a list; further ones are added when the end of the list comes into view. */
class Rows {
  constructor(list, added) {
    this.list = list;
    this.added = added;
    this.end = h("div", { class: "end" });
    list.after(this.end);
    this.observer = new IntersectionObserver((seen) => seen.some((one) => one.isIntersecting) && this.add(), { rootMargin: "600px" });
  }

  show(rows) {
    this.rows = rows;
    this.count = 0;
    this.list.replaceChildren();
    this.add();
  }

  add() {
    const fresh = this.rows.slice(this.count, this.count + CHUNK);
    this.count += fresh.length;
    for (const item of fresh) if (!item.detail) furnish(item);
    this.list.append(...fresh.map((item) => item.element));
    fresh.forEach(this.added);
    // An observer reports an element that stays in view only once.
    this.observer.unobserve(this.end);
    if (this.count < this.rows.length) this.observer.observe(this.end);
  }
}

/** Moves the focus with the arrow keys, from the search field through the visible links. */
function moveFocus(event, section, search) {
  if (!["ArrowDown", "ArrowUp"].includes(event.key) || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const isLink = event.target.matches("a") && event.target.closest("#entries, .found, .tree");
  if (event.target !== search && !isLink) return;
  const links = [...section.querySelectorAll("#entries a, .found li > a, .tree a")].filter((link) => link.checkVisibility());
  const to = links.indexOf(event.target) + (event.key === "ArrowDown" ? 1 : -1);
  if (event.target === search && event.key === "ArrowUp") return;
  const next = to < 0 ? search : links[to];
  if (!next) return;
  event.preventDefault();
  next.focus();
}

/** Adds details, pictures, an order, a tree and a search to the plain list. */
export function enliven(heading) {
  const list = document.querySelector("#entries");
  items = [...list.children].map(toItem);
  const more = document.querySelector("#more");
  const after = new URLSearchParams(location.search).get("after");
  const details = new Details(after);
  const seen = whenSeen(details);
  const finding = new Finding(new Set(directories()));
  const count = h("span", { class: "count", role: "status" });
  const search = h("input", {
    type: "search", placeholder: "Search here and below", autocomplete: "off", spellcheck: "false",
    "aria-label": "Search this directory and everything below",
  });
  const select = h("select", { "aria-label": "Sort by" }, Object.entries(ORDERS).map(([key, [text]]) => h("option", { value: key, text })));
  const descending = h("button", { type: "button", class: "quiet", "aria-pressed": "false", "aria-label": "Descending", title: "Descending", text: "↓" });
  const order = h("span", { class: "order" }, select, descending);
  const branches = tree();
  const section = h("section", { class: "contents", "aria-label": heading });
  list.before(section);
  const hasDirectories = directories().length > 0;
  const arrangement = choice("arrangement", "Arrangement", [["list", "List"], ["tree", "Tree"]], "list", (chosen) => {
    const isTree = chosen === "tree";
    branches.show(isTree);
    list.hidden = isTree;
    rows.end.hidden = isTree;
    order.hidden = isTree;
  });
  section.append(
    h("div", { class: "bar" }, h("h2", { text: heading }), count, after === null ? "" : fromStart(),
      items.length > 1 ? order : "", hasDirectories ? arrangement : "", items.length > 1 || hasDirectories ? search : ""),
    ...[list, document.querySelector("#entries ~ p"), branches.element, more, finding.element].filter(Boolean),
  );
  const rows = new Rows(list, seen);
  let inOrder = sorted("name", false);
  let words = [];
  const show = () => {
    const shown = words.length ? inOrder.filter((item) => words.every((word) => item.text.includes(word))) : inOrder;
    rows.show(shown);
    const number = items.length.toLocaleString("en");
    const first = more && after === null ? "first " : "";
    const entries = `${first}${number} ${items.length === 1 ? "entry" : "entries"}${after === null ? "" : ` after ${after}`}`;
    count.textContent = words.length ? `${shown.length.toLocaleString("en")} of ${entries}` : entries;
  };
  const reorder = async () => {
    const [key, isDescending] = [select.value, descending.getAttribute("aria-pressed") === "true"];
    if (key !== "name") await details.all().catch(() => null);
    if (key !== select.value) return;
    inOrder = sorted(key, isDescending);
    show();
  };
  const filter = () => {
    words = wordsOf(search.value);
    show();
    if (words.length && !details.subtree.done) details.all().catch(() => null);
    finding.search(words);
  };
  // A description that arrives while words are searched for may add a match.
  details.changed = () => words.length && show();
  select.addEventListener("change", reorder);
  descending.addEventListener("click", () => {
    descending.setAttribute("aria-pressed", String(descending.getAttribute("aria-pressed") !== "true"));
    reorder();
  });
  search.addEventListener("focus", () => finding.prepare());
  search.addEventListener("input", filter);
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && words.length) (list.hidden ? section.querySelector(".found a") : section.querySelector("#entries a, .found a"))?.click();
    if (event.key === "Escape") {
      search.value = "";
      filter();
    }
  });
  section.addEventListener("keydown", (event) => moveFocus(event, section, search));
  document.addEventListener("keydown", (event) => {
    const typing = /^(input|textarea|select)$/i.test(event.target.tagName ?? "");
    if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    search.focus();
  });
  show();
  if (more && token !== null) more.append(h("input", { type: "hidden", name: "token", value: token }));
}
