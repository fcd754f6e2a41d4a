// The listing of a directory: details and pictures of its entries, their order, and a search.

import { arrange, choice, h, later } from "./dom.js";
import { describeEntry, searchText, wordsOf } from "./entry_facts.js";
import { orderNames, sorted } from "./entry_order.js";
import { addStyle, join, path, token, withToken } from "./server.js";
import { Subtree, firstVolume, isDrawable, nameOf } from "./subtree.js";
import { thumbnail } from "./thumbnail.js";

/** Maximum number of concurrent requests for the first volumes of groups. */
const AT_ONCE = 4;
/** Number of rows that are added to the page at once. */
const CHUNK = 200;
/** Number of rows beyond which only visible ones are laid out. */
const LONG = 100;
/** Length of the longer side of a picture, in device pixels. */
const PICTURE_SIZE = 112;

/** Returns what the history keeps about the list of this page, so that going back restores it. */
const kept = () => history.state?.list ?? {};

function keep(changes) {
  history.replaceState({ ...history.state, list: { ...kept(), ...changes } }, "");
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

/** Loads the descriptions of all items, page by page and only as far as they are needed. */
class Details {
  constructor(items, after) {
    this.items = items;
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

  /** Loads the description of one item. A directory that only a view has, such as one of chunks, has none. */
  async of(item) {
    while (!item.entry && !this.subtree.done) await this.more();
    return item.entry;
  }

  async all() {
    while (!this.subtree.done && this.count < this.items.length + 1000) await this.more();
  }
}

/** Describes rows when they come into view, and adds a picture of their volume or of the first volume below. */
function whenSeen(details) {
  const waiting = [];
  const rows = new WeakMap();
  let running = 0;
  const complete = async (item) => {
    const entry = await details.of(item);
    if (!entry || entry.store || item.picture.childElementCount > 0) return;
    const volume = isDrawable(entry) ? entry.path : entry.kind === "group" && !entry.error ? await firstVolume(entry.path) : null;
    // A row that was seen again meanwhile may have its picture.
    if (volume !== null) item.picture.replaceChildren(thumbnail(volume, PICTURE_SIZE));
  };
  const next = async () => {
    if (waiting.length === 0 || running >= AT_ONCE) return;
    running += 1;
    await complete(waiting.shift()).catch(() => null);
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

  /** Shows other rows, at least `count` of them. */
  show(rows, count = 0) {
    this.rows = rows;
    this.count = 0;
    this.add(Math.max(count, CHUNK));
  }

  add(count = CHUNK) {
    const fresh = this.rows.slice(this.count, this.count + count);
    this.count += fresh.length;
    for (const item of fresh) if (!item.detail) furnish(item);
    this.list.classList.toggle("long", this.count > LONG);
    arrange(this.list, this.rows.slice(0, this.count).map((item) => item.element));
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

/**
 * Adds details, pictures, an order, a tree and a search to the plain list. Returns the `names` of its directories;
 * `described`, which resolves to the entries of the first page of descriptions; and `restore`, which scrolls to where
 * the reader was before following a link, once the page has its final layout.
 */
export function enliven(heading) {
  const list = document.querySelector("#entries");
  const items = [...list.children].map(toItem);
  const names = items.filter((item) => item.name !== null).map((item) => item.name);
  const more = document.querySelector("#more");
  const after = new URLSearchParams(location.search).get("after");
  const details = new Details(items, after);
  const count = h("span", { class: "count", role: "status" });
  const search = h("input", {
    type: "search", placeholder: "Search here and below", autocomplete: "off", spellcheck: "false",
    "aria-label": "Search this directory and everything below",
  });
  const select = h("select", { "aria-label": "Sort by" }, orderNames.map(([key, text]) => h("option", { value: key, text })));
  const descending = h("button", { type: "button", class: "quiet", "aria-pressed": "false", "aria-label": "Descending", title: "Descending", text: "↓" });
  const order = h("span", { class: "order" }, select, descending);
  const section = h("section", { class: "contents", "aria-label": heading });
  list.before(section);
  const arrangement = choice("arrangement", "Arrangement", [["list", "List"], ["tree", "Tree"]], "list", (chosen) => {
    keep({ arrangement: chosen });
    showArrangement(chosen);
  });
  section.append(
    h("div", { class: "bar" }, h("h2", { text: heading }), count, after === null ? "" : fromStart(),
      items.length > 1 ? order : "", names.length ? arrangement : "", items.length > 1 || names.length ? search : ""),
    ...[list, document.querySelector("#entries ~ p"), more].filter(Boolean),
  );
  const rows = new Rows(list, whenSeen(details));

  let branches = null;
  const showArrangement = (chosen) => {
    const isTree = chosen === "tree";
    list.hidden = rows.end.hidden = order.hidden = isTree;
    if (isTree) {
      branches ??= Promise.all([import("./tree.js"), addStyle("group.css")]).then(([{ Tree }]) => {
        const tree = new Tree(kept().open, (open) => keep({ open }));
        rows.end.after(tree.element);
        return tree;
      });
    }
    branches?.then((tree) => tree.show(list.hidden)).catch(() => (branches = null));
  };

  let below = null;
  const findBelow = () => {
    below ??= Promise.all([import("./finding.js"), addStyle("group.css")]).then(([{ Finding }]) => {
      const finding = new Finding(new Set(names), kept().everywhere === true, (everywhere) => keep({ everywhere }));
      section.append(finding.element);
      return finding;
    });
    below.catch(() => (below = null));
    return below;
  };

  let inOrder = sorted(items, "name", false);
  let words = [];
  const show = (least) => {
    const shown = words.length ? inOrder.filter((item) => words.every((word) => item.text.includes(word))) : inOrder;
    rows.show(shown, least);
    const number = items.length.toLocaleString("en");
    const first = more && after === null ? "first " : "";
    const entries = `${first}${number} ${items.length === 1 ? "entry" : "entries"}${after === null ? "" : ` after ${after}`}`;
    count.textContent = words.length ? `${shown.length.toLocaleString("en")} of ${entries}` : entries;
  };
  const isDescending = () => descending.getAttribute("aria-pressed") === "true";
  const reorder = async (least) => {
    const key = select.value;
    if (key !== "name") await details.all().catch(() => null);
    if (key !== select.value) return;
    inOrder = sorted(items, key, isDescending());
    show(least);
  };
  const filter = (least) => {
    words = wordsOf(search.value);
    show(least);
    if (words.length && !details.subtree.done) details.all().catch(() => null);
    if (words.length || below) findBelow().then((finding) => finding.search(words)).catch(() => null);
  };
  // A description that arrives while words are searched for may add a match.
  details.changed = () => words.length && show(rows.count);
  const keepSearch = later(() => keep({ search: search.value }));
  select.addEventListener("change", () => {
    keep({ order: select.value });
    reorder();
  });
  descending.addEventListener("click", () => {
    descending.setAttribute("aria-pressed", String(!isDescending()));
    keep({ isDescending: isDescending() });
    reorder();
  });
  // The pointer arrives some tenths of a second before the first word.
  for (const event of ["focus", "pointerenter"]) {
    search.addEventListener(event, () => findBelow().then((finding) => finding.prepare()).catch(() => null), { once: true });
  }
  search.addEventListener("input", () => {
    keepSearch();
    filter();
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && words.length) follow();
    if (event.key === "Escape") {
      search.value = "";
      keepSearch();
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
  // While a page is left, browsers ignore what it writes to its history.
  const keepPlace = () => keep({ search: search.value, rows: rows.count, top: scrollY });
  addEventListener("scroll", later(keepPlace));
  section.addEventListener("click", keepPlace, true);
  /** Opens the best match: what has exactly this name, or else the first one in the list, or else the first one below. */
  const follow = async () => {
    const wanted = words;
    const item = list.hidden ? null : inOrder.find(({ text }) => wanted.every((word) => text.includes(word)));
    const isNamed = item?.name?.toLowerCase() === wanted.join(" ");
    const best = isNamed ? null : await findBelow().then((finding) => finding.best(wanted, !item)).catch(() => null);
    if (words !== wanted) return;
    if (item && !best?.isExact) item.link.click();
    else if (best) {
      keepPlace();
      location.assign(best.href);
    }
  };

  const before = kept();
  if (orderNames.some(([key]) => key === before.order)) select.value = before.order;
  if (before.isDescending) descending.setAttribute("aria-pressed", "true");
  if (before.search) search.value = before.search;
  filter(before.rows);
  const isOrdered = select.value !== "name" || before.isDescending ? reorder(before.rows) : null;
  if (before.arrangement === "tree" && names.length) {
    arrangement.querySelector("[value=tree]").checked = true;
    showArrangement("tree");
  }
  if (more && token !== null) more.append(h("input", { type: "hidden", name: "token", value: token }));
  const described = (names.length ? details.more().catch(() => null) : Promise.resolve()).then(() => details.subtree.entries);
  const restore = () => {
    if (before.top) Promise.resolve(isOrdered).then(() => scrollTo(0, before.top));
  };
  return { names, described, restore };
}
