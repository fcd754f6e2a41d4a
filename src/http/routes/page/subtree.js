// Short descriptions of what is below a directory, which are loaded page by page.

import { ask, url } from "./server.js";

/** Number of entries of one request. */
const PAGE_ENTRIES = 1000;

/** The entries below a directory, in the order of the server: depth first, each directory before those below it. */
export class Subtree {
  /**
   * `depth` is the maximum number of names in the path of an entry. With `levels`, the levels of pyramids are entries.
   * The first entry comes after the path `after`.
   */
  constructor(path, { depth = null, levels = false, after = null, limit = PAGE_ENTRIES } = {}) {
    this.path = path;
    this.entries = [];
    this.done = false;
    this.parameters = { depth, levels, limit };
    this.next = after;
    this.loading = null;
  }

  /** Loads the next page. Concurrent calls share one request. Throws a `Problem` if the request fails. */
  more() {
    if (this.done) return Promise.resolve();
    this.loading ??= this.request().finally(() => (this.loading = null));
    return this.loading;
  }

  async request() {
    const { depth, levels, limit } = this.parameters;
    const query = new URLSearchParams({ recursive: "1", limit: String(limit) });
    if (depth !== null) query.set("depth", String(depth));
    if (levels) query.set("levels", "1");
    if (this.next !== null) query.set("after", this.next);
    // A plus sign in a query stands for itself on this server, so spaces are percent-encoded.
    const text = query.toString().replace(/\+/g, "%20");
    const page = await (await ask(url("info", this.path, text))).json();
    this.entries.push(...page.entries);
    this.next = page.next;
    this.done = page.next === null;
  }
}

const firstVolumes = new Map();

/** Returns true if a preview of the entry can be drawn. */
export function isDrawable(entry) {
  const { kind, dimensions, data_type: type } = entry;
  return (kind === "dataset" || kind === "multiscale") && /^(u?int(8|16|32|64)|float(32|64))$/.test(type ?? "")
    && dimensions?.length > 0 && !dimensions.includes(0);
}

/** Returns the path of the first volume below a group, searched for among its first entries; null if there is none. */
export function firstVolume(path) {
  if (!firstVolumes.has(path)) {
    const subtree = new Subtree(path, { limit: 50 });
    const found = subtree.more().then(() => subtree.entries.find(isDrawable)?.path ?? null);
    firstVolumes.set(path, found.catch(() => null));
  }
  return firstVolumes.get(path);
}

/** Returns the path of the entry relative to `path`. */
export function below(path, entry) {
  return path === "" ? entry.path : entry.path.slice(path.length + 1);
}

/** Returns the last name of a path. */
export function nameOf(path) {
  return path.split("/").pop();
}

