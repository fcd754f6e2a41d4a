// Search among the entries of a directory and everything below it.

import { arrange, h } from "./dom.js";
import { describeEntry, searchText } from "./entry_facts.js";
import { natural } from "./entry_order.js";
import { directory, path } from "./server.js";
import { Subtree, below, nameOf } from "./subtree.js";

/** Maximum number of entries that are loaded, and number of matches that are shown at once. */
const MAX_ENTRIES = 50_000;
const SHOWN = 50;
/** Number of entries that are loaded before the first word is typed. */
const PREPARED = 10_000;
/** Delay in milliseconds after the last key before everything below is searched. */
const DELAY = 50;

/** Returns a number that is smaller for a better match; null if some word is missing. */
function rank(entry, from, words) {
  entry.text ??= searchText(entry.path, entry);
  if (!words.every((word) => entry.text.includes(word))) return null;
  const name = nameOf(entry.path).toLowerCase();
  if (words.length === 1 && name === words[0]) return 0;
  if (words.some((word) => name.startsWith(word))) return 1;
  if (words.some((word) => name.includes(word))) return 2;
  return words.some((word) => below(from, entry).toLowerCase().includes(word)) ? 3 : 4;
}

/** Builds a text in which the words are marked. */
function marked(text, words) {
  const lower = text.toLowerCase();
  const parts = [];
  let at = 0;
  while (at < text.length) {
    const hits = words.map((word) => [lower.indexOf(word, at), word.length]).filter(([start]) => start >= 0);
    if (hits.length === 0 || lower.length !== text.length) break;
    const [start, length] = hits.reduce((best, hit) => (hit[0] < best[0] ? hit : best));
    parts.push(text.slice(at, start), h("mark", { text: text.slice(start, start + length) }));
    at = start + length;
  }
  return [...parts, text.slice(at)];
}

/**
 * The matches anywhere below this directory. `element` is hidden unless there is something to show. `listed` holds the
 * names that the list above shows itself. `everywhere` lets the search begin at the root; `changed(everywhere)` is
 * called when the reader changes that.
 */
export class Finding {
  constructor(listed, everywhere, changed) {
    Object.assign(this, { listed, everywhere, changed });
    this.words = [];
    /** Rows by entry, for the same words. */
    this.rows = new Map();
    this.shown = SHOWN;
    this.subtrees = new Map();
    this.timer = null;
    this.status = h("span", { class: "count", role: "status" });
    this.list = h("ul", { class: "rows found" });
    this.more = h("button", { type: "button", class: "quiet", text: "Show more", on: { click: () => this.showMore() } });
    this.scope = h("button", { type: "button", class: "quiet", hidden: path === "", on: { click: () => this.toggle() } });
    this.element = h("section", { class: "matches", "aria-label": "Matches below", hidden: true },
      h("div", { class: "bar" }, h("h3", { text: "Below" }), this.status, this.scope), this.list,
      h("div", { class: "bar" }, this.more));
    this.title = this.element.querySelector("h3");
  }

  get from() {
    return this.everywhere ? "" : path;
  }

  subtree() {
    if (!this.subtrees.has(this.from)) this.subtrees.set(this.from, new Subtree(this.from));
    return this.subtrees.get(this.from);
  }

  /** Begins to load what will be searched. */
  async prepare() {
    const subtree = this.subtree();
    while (!subtree.done && subtree.entries.length < PREPARED) await subtree.more();
  }

  /** Searches for entries with all of `words`; for none, shows nothing. */
  search(words) {
    if (words === this.words) return;
    this.words = words;
    this.shown = SHOWN;
    this.forget();
    clearTimeout(this.timer);
    if (words.length === 0) {
      this.element.hidden = true;
      return;
    }
    this.timer = setTimeout(() => this.run(words), DELAY);
  }

  async run(words) {
    const subtree = this.subtree();
    const isCurrent = () => words === this.words && subtree === this.subtree();
    this.render(subtree);
    try {
      while (isCurrent() && !subtree.done && subtree.entries.length < MAX_ENTRIES) {
        await subtree.more();
        if (isCurrent()) this.render(subtree);
      }
    } catch (error) {
      if (isCurrent()) this.status.textContent = `Not everything could be searched: ${error.message}`;
    }
  }

  toggle() {
    this.everywhere = !this.everywhere;
    this.changed(this.everywhere);
    this.forget();
    this.run(this.words);
  }

  forget() {
    this.rows.clear();
  }

  showMore() {
    const first = this.list.children.length;
    this.shown += 4 * SHOWN;
    this.render(this.subtree());
    this.list.children[first]?.querySelector("a").focus();
  }

  row(entry) {
    const link = h("a", { href: directory("n5", entry.path) }, marked(below(this.from, entry), this.words));
    return h("li", { "data-kind": entry.kind }, link, h("span", { class: "detail" }, describeEntry(entry)));
  }

  /** Returns the matches in a subtree as pairs of a rank and an entry, the best first. */
  matchesIn(subtree, words) {
    const isListed = (entry) => !this.everywhere && this.listed.has(below(path, entry));
    const matches = [];
    for (const entry of subtree.entries) {
      const order = isListed(entry) ? null : rank(entry, this.from, words);
      if (order !== null) matches.push([order, entry]);
    }
    if (matches.length <= 5000) matches.sort((a, b) => a[0] - b[0] || natural(a[1].path, b[1].path));
    else matches.sort((a, b) => a[0] - b[0]);
    return matches;
  }

  /**
   * Resolves to the best match, {isExact, href}; null if there is none. If there is none at first, everything is
   * searched, or only a page of entries unless `isPatient`.
   */
  async best(words, isPatient) {
    const subtree = this.subtree();
    const isEnough = () => subtree.done || subtree.entries.length >= (isPatient ? MAX_ENTRIES : 1);
    while (this.matchesIn(subtree, words).length === 0 && !isEnough()) await subtree.more();
    const [[order, entry] = []] = this.matchesIn(subtree, words);
    return entry ? { isExact: order === 0, href: directory("n5", entry.path) } : null;
  }

  render(subtree) {
    const matches = this.matchesIn(subtree, this.words);
    let found = matches.map(([, entry]) => entry);
    if (this.list.matches(":hover, :focus-within")) {
      // Matches do not move under the pointer.
      const fixed = [...this.rows.keys()];
      const isFixed = new Set(fixed);
      found = [...fixed, ...found.filter((entry) => !isFixed.has(entry))];
    }
    const shown = found.slice(0, this.shown);
    this.rows = new Map(shown.map((entry) => [entry, this.rows.get(entry) ?? this.row(entry)]));
    arrange(this.list, [...this.rows.values()]);
    this.more.parentElement.hidden = matches.length <= this.shown;
    const count = `${matches.length.toLocaleString("en")} ${matches.length === 1 ? "match" : "matches"}`;
    const searched = subtree.entries.length.toLocaleString("en");
    const isCut = !subtree.done && subtree.entries.length >= MAX_ENTRIES;
    if (isCut) this.status.textContent = `${count} among the first ${searched} entries; open a group to search only below it`;
    else this.status.textContent = subtree.done ? count : `${count} so far, ${searched} entries searched …`;
    this.title.textContent = this.everywhere ? "Everywhere" : "Below";
    this.scope.textContent = this.everywhere ? "Search only below this directory" : "Search everywhere";
    this.element.hidden = false;
  }
}
