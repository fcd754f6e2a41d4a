// The view of a dataset: where it looks, how near, and every setting of the display. The URL's fragment holds it, so
// that a copied address opens the same view.
//
// A change replaces the address in place, as on maps: "Back" leaves the page and does not undo movements. A link that
// is followed in the page, or an address that is typed or pasted, is an entry of its own, to which "Back" returns.

/** Milliseconds before a change is written to the address. Safari refuses more than 100 changes in 30 seconds. */
const WRITE_DELAY = 320;

/** Characters that need no escape in a fragment and keep it readable. */
const READABLE = /%(2C|3A|3B|2F|40|24|21|7E|2A|28|29|20)/g;

const TIME = /^(t|time|frame|timepoint)s?$/i;

/** Parses a fragment such as `#at=96,80,20&zoom=4` to a map of its sections. A section that cannot be read is left out. */
function parseFragment(text) {
  const sections = new Map();
  for (const part of text.replace(/^#/, "").split("&")) {
    const [, name, value] = /^([A-Za-z][\w-]*)=(.*)$/s.exec(part) ?? [];
    if (name === undefined) continue;
    try {
      sections.set(name, decodeURIComponent(value.replace(/\+/g, " ")));
    } catch {
      // A wrong escape.
    }
  }
  return sections;
}

/** Returns the fragment of sections, without `#`; empty if there are none. */
function formatFragment(sections) {
  const escape = (text) => encodeURIComponent(text).replace(READABLE, (code) => (code === "%20" ? "+" : decodeURIComponent(code)));
  return [...sections].map(([name, text]) => `${name}=${escape(text)}`).join("&");
}

/** Parses numbers separated by commas; null unless there are `count`, all finite. */
export function numbers(text, count) {
  const found = (text ?? "").split(",").map((word) => (word.trim() === "" ? NaN : Number(word)));
  return found.length === count && found.every(Number.isFinite) ? found : null;
}

/** Formats a number for the fragment: no more digits than a view can show. */
function brief(value) {
  return String(Number(value.toPrecision(6)));
}

/**
 * The view. These properties are read freely and changed only by `set`:
 *
 * - `position`: the selected element, one index per axis of the finest level. It includes the channel and time axes.
 * - `centre`: the point in the middle of the planes, in elements of the finest level; the first one covers 0 to 1.
 * - `zoom`: 1 shows the whole volume, 2 half of each axis.
 * - `layout`: `all`, or the number of the only plane to show; null lets the page choose.
 * - `level`: the number of the level to show; null lets the page choose.
 *
 * Other settings are sections: their owner keeps the values, `register`s how to read and write them as text, and calls
 * `changed(name)` after each change.
 */
export class ViewState {
  constructor(volume) {
    this.volume = volume;
    this.listeners = new Set();
    this.sections = new Map();
    this.given = parseFragment(location.hash);
    this.timer = null;
    const { dimensions } = volume;
    this.home = {
      position: dimensions.map((n, axis) => (axis === volume.channel || TIME.test(volume.axes[axis]) ? 0 : Math.max(0, Math.floor((n - 1) / 2)))),
      centre: dimensions.map((n) => n / 2),
      zoom: 1, layout: null, level: null,
    };
    Object.assign(this, structuredClone(this.home));
    this.registerOwn();
    addEventListener("hashchange", () => this.readAddress());
    addEventListener("pagehide", () => this.writeAddress());
  }

  registerOwn() {
    const { rank } = this.volume;
    const own = (name, key, read, write) =>
      this.register(name, {
        read: (text) => Object.assign(this, { [key]: this.checked(key, text === null ? null : read(text)) }),
        write: () => (JSON.stringify(this[key]) === JSON.stringify(this.home[key]) ? null : write(this[key])),
      }, key);
    const number = (text) => numbers(text, 1)?.[0] ?? null;
    own("at", "position", (text) => numbers(text, rank), (position) => position.join());
    own("zoom", "zoom", number, brief);
    // An address that names a point and a zoom looks at the point, unless it says otherwise.
    const isAimed = (has) => has("at") && has("zoom") && this.zoom > this.home.zoom;
    const point = () => this.position.map((at) => at + 0.5);
    this.register("centre", {
      read: (text) => {
        const otherwise = isAimed((name) => this.given.has(name)) ? point() : null;
        this.centre = this.checked("centre", numbers(text, rank) ?? otherwise);
      },
      write: () => {
        const otherwise = isAimed((name) => this.sections.get(name).write() !== null) ? point() : this.home.centre;
        const [written, absent] = [this.centre, otherwise].map((centre) => centre.map(brief).join());
        return written === absent ? null : written;
      },
    });
    own("level", "level", number, String);
    own("layout", "layout", (text) => text, String);
  }

  /** Returns a value for the property `key` that the volume has; for null and what cannot be used, the default. */
  checked(key, value) {
    const { dimensions, levels } = this.volume;
    const within = (n, low, high) => Math.min(Math.max(n, low), high);
    if (value === null || value === undefined) return structuredClone(this.home[key]);
    switch (key) {
      case "position": return value.map((n, axis) => within(Math.round(n), 0, Math.max(0, dimensions[axis] - 1)));
      case "centre": return value.map((n, axis) => within(n, 0, dimensions[axis]));
      case "zoom": return Number.isFinite(value) && value > 0 ? within(value, 0.5, this.mostZoom()) : this.home.zoom;
      case "level": return Number.isInteger(value) && value >= 0 && value < levels.length ? value : null;
      case "layout": return value === "all" || /^[0-2]$/.test(value) ? String(value) : null;
      default: return value;
    }
  }

  /** Returns the largest zoom: about 8 elements of the longest axis are left. */
  mostZoom() {
    return Math.max(1, ...this.volume.dimensions.filter(Number.isFinite)) / 8 + 1;
  }

  /** Changes properties. Listeners are called once, with the set of the properties that differ. */
  set(changes) {
    const changed = new Set();
    for (const [key, value] of Object.entries(changes)) {
      const next = this.checked(key, value);
      if (JSON.stringify(next) === JSON.stringify(this[key])) continue;
      this[key] = next;
      changed.add(key);
    }
    if (changed.size) this.notify(changed);
  }

  /**
   * Adds a section of the fragment. `read(text)` adopts a value; null stands for a section that is absent and restores
   * the default, and so does a text that makes no sense. `write()` returns the text; null while the value is the
   * default. `read` is called at once. `key` is the name that listeners receive.
   */
  register(name, { read, write }, key = name) {
    this.sections.set(name, { read, write, key });
    read(this.given.get(name) ?? null);
  }

  /** Tells the listeners that a registered section has changed. */
  changed(name) {
    this.notify(new Set([this.sections.get(name)?.key ?? name]));
  }

  /** Calls `listener(keys)` after each change. Returns a function that ends this. */
  subscribe(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  notify(keys) {
    for (const listener of this.listeners) listener(keys);
    this.timer ??= setTimeout(() => this.writeAddress(), WRITE_DELAY);
  }

  /** Returns the fragment of this view, without `#`; empty for the view that the page opens with. */
  fragment() {
    const texts = [...this.sections].map(([name, { write }]) => [name, write()]);
    return formatFragment(texts.filter(([, text]) => text !== null && text !== undefined));
  }

  /** Returns the address that opens this view. */
  link() {
    const fragment = this.fragment();
    return location.href.split("#")[0] + (fragment && `#${fragment}`);
  }

  writeAddress() {
    if (this.timer === null) return;
    clearTimeout(this.timer);
    this.timer = null;
    const link = this.link();
    if (link !== location.href) history.replaceState(history.state, "", link);
  }

  /** Adopts the view that the address names, after the reader changed it or went back to it. */
  readAddress() {
    clearTimeout(this.timer);
    this.timer = null;
    this.given = parseFragment(location.hash);
    for (const [name, { read }] of this.sections) read(this.given.get(name) ?? null);
    for (const listener of this.listeners) listener(new Set([...this.sections.values()].map(({ key }) => key)));
  }
}
