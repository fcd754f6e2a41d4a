// Contrast: the values shown as black and as white, and the control that changes them.

import { number } from "./describe.js";
import { h } from "./dom.js";
import { limitsOf } from "./value_statistics.js";

/** Number of positions of a handle. */
const STEPS = 1000;
const BARS = 128;

/** Share of the track beyond the values between which the data lie, if there are outliers on that side. */
const TAIL = 0.05;

/**
 * The scale of the track: which value belongs to which position from 0 to 1. Half of the track is linear, half follows
 * quantiles, so that values that are frequent get more of it. Outliers are at the ends.
 */
class Scale {
  constructor(dataType, distribution) {
    // An 8-bit image that uses its range has a linear scale of the whole range.
    const limits = limitsOf(dataType);
    const is8Bit = /int8$/.test(dataType) && (!distribution || String(distribution.window) === String(limits));
    const [min, max] = distribution ? [distribution.min, distribution.max].map((value) => distribution.near(value ?? 0)) : [0, 1];
    let [low, high] = is8Bit || !distribution ? limitsOf(is8Bit ? dataType : "uint8") : distribution.robust;
    if (!distribution && !is8Bit) [low, high] = [0, 1];
    if (!is8Bit && distribution) {
      // There is room to choose a darker black and a brighter white.
      const margin = (high - low) / 5;
      [low, high] = [Math.max(min, low - margin), Math.min(max, high + margin)];
      if (!(high > low)) [low, high] = [Math.min(0, min), Math.max(1, max, 2 * max)];
    }
    this.knots = [[0, low], [1, high]];
    const isFine = distribution?.whole && high - low <= STEPS;
    if (!is8Bit && distribution && !distribution.empty && !isFine) this.follow(distribution, low, high);
    this.ends = is8Bit ? [low, high] : [Math.min(min, low), Math.max(max, high)];
    const [left, right] = [this.ends[0] < low ? TAIL : 0, this.ends[1] > high ? TAIL : 0];
    this.core = [left, 1 - right];
    this.knots = this.knots.map(([place, value]) => [left + place * (1 - left - right), value]);
  }

  follow(distribution, low, high) {
    const [from, to] = [distribution.rankOf(low), distribution.rankOf(high)];
    const count = 200;
    const found = [low];
    for (let n = 1; n < count; n += 1) {
      const value = distribution.at(from + ((to - from) * n) / count);
      if (value > found[found.length - 1] && value < high) found.push(value);
    }
    found.push(high);
    this.knots = found.map((value, n) => [(n / (found.length - 1) + (value - low) / (high - low)) / 2, value]);
  }

  place(value) {
    const { knots, ends, core } = this;
    const last = knots.length - 1;
    const tail = (distance, length) => Math.cbrt(Math.min(1, distance / length));
    if (value < knots[0][1]) return ends[0] < knots[0][1] ? core[0] * (1 - tail(knots[0][1] - value, knots[0][1] - ends[0])) : 0;
    if (value > knots[last][1]) {
      return ends[1] > knots[last][1] ? core[1] + (1 - core[1]) * tail(value - knots[last][1], ends[1] - knots[last][1]) : 1;
    }
    const n = Math.max(1, knots.findIndex((knot) => knot[1] >= value));
    const [[a, from], [b, to]] = [knots[n - 1], knots[n]];
    return to > from ? a + ((b - a) * (value - from)) / (to - from) : a;
  }

  value(place) {
    const { knots, ends, core } = this;
    const last = knots.length - 1;
    if (place < core[0]) return knots[0][1] + (ends[0] - knots[0][1]) * (1 - place / core[0]) ** 3;
    if (place > core[1]) return knots[last][1] + (ends[1] - knots[last][1]) * ((place - core[1]) / (1 - core[1])) ** 3;
    const n = Math.max(1, knots.findIndex((knot) => knot[0] >= place));
    const [[a, from], [b, to]] = [knots[n - 1], knots[n]];
    return b > a ? from + ((to - from) * (place - a)) / (b - a) : from;
  }
}

/**
 * The window of a channel: the values of black and white. `given` is a window from metadata, which is then the default.
 * `chosen` is the one that the reader has set, or null.
 */
export class Window {
  constructor(dataType, given = null) {
    Object.assign(this, { dataType, chosen: null, distribution: null, isFinal: false });
    this.whole = !dataType.startsWith("float");
    this.given = given && this.whole ? given.map(Math.round) : given;
    this.scale = new Scale(dataType, null);
  }

  /** Adopts value statistics. Those that are final are not replaced. */
  know(distribution, isFinal = false) {
    if (!distribution || this.isFinal || (distribution.empty && !isFinal)) return;
    this.distribution = distribution;
    this.isFinal = isFinal;
    this.scale = new Scale(this.dataType, distribution.empty ? null : distribution);
  }

  get default() {
    if (this.given) return this.given;
    if (this.distribution) return this.distribution.window;
    return /int8$/.test(this.dataType) ? limitsOf(this.dataType) : [0, 1];
  }

  get value() {
    return this.chosen ?? this.default;
  }

  /** The whole range of the values; for 8 bits, that of the type. */
  get full() {
    if (/int8$/.test(this.dataType)) return [...limitsOf(this.dataType)];
    const { distribution } = this;
    if (!distribution || distribution.empty) return limitsOf(this.dataType) ?? [0, 1];
    return distribution.constant ? distribution.window : [distribution.min, distribution.max];
  }

  near(value) {
    return this.distribution ? this.distribution.near(value) : Number(value);
  }

  far(value) {
    return this.distribution ? this.distribution.far(value) : this.whole ? Math.round(value) : value;
  }

  /** Sets black (0) or white (1). Black is at most white. */
  set(end, value) {
    const window = [...this.value];
    window[end] = end === 0 ? (value > window[1] ? window[1] : value) : value < window[0] ? window[0] : value;
    this.chosen = window;
  }

  /** Returns the value that is `steps` of 1/1000 of the track away, and for integers at least one. */
  moved(end, steps) {
    const now = this.near(this.value[end]);
    const place = Math.min(1, Math.max(0, this.scale.place(now) + steps / STEPS));
    let next = this.scale.value(place);
    if (this.whole && Math.abs(next - now) < 1) next = now + Math.sign(steps);
    const [from, to] = this.scale.ends;
    return this.far(Math.min(Math.max(next, Math.min(from, now)), Math.max(to, now)));
  }

  /** Formats a value with the digits that matter between black and white. */
  text(value) {
    if (typeof value === "bigint" || this.whole) return String(value);
    const [low, high] = this.value;
    const unit = 10 ** (Math.floor(Math.log10(high > low ? high - low : Math.abs(high) || 1)) - 4);
    const rounded = Number.isFinite(value / unit) && unit > 0 ? Math.round(value / unit) * unit : value;
    return String(Number(rounded.toPrecision(6)));
  }

  /** Parses a value; null if the text is not a number of this type. */
  parse(text) {
    const words = text.trim();
    if (words === "" || !Number.isFinite(Number(words))) return null;
    if (!this.whole) return Number(words);
    const isLarge = /^-?\d+$/.test(words) && !Number.isSafeInteger(Number(words));
    return isLarge ? BigInt(words) : Math.round(Number(words));
  }
}

/** The control. It shows one window at a time. `change(window)` is called when the reader has changed it. */
export class ContrastControl {
  constructor(window, change) {
    this.window = window;
    this.change = () => change(this.window);
    this.canvas = h("canvas", { width: 512, height: 96, "aria-hidden": "true" });
    this.handles = ["Black", "White"].map((label, end) => {
      const keys = { ArrowLeft: -5, ArrowDown: -5, ArrowRight: 5, ArrowUp: 5, PageDown: -50, PageUp: 50 };
      const handle = h("input", {
        type: "range", min: 0, max: STEPS, step: 1, "aria-label": `${label}: the value shown as ${label.toLowerCase()}`,
        on: {
          input: () => this.moved(end, this.window.far(this.window.scale.value(Number(handle.value) / STEPS)), handle),
          change: () => this.show(),
          keydown: (event) => {
            if (event.ctrlKey || event.altKey || event.metaKey || !(event.key in keys)) return;
            event.preventDefault();
            this.moved(end, this.window.moved(end, keys[event.key] / (event.shiftKey ? 5 : 1)));
          },
        },
      });
      return handle;
    });
    // The texts that the boxes show, unless the reader has typed another one.
    this.texts = [null, null];
    this.boxes = ["Black", "White"].map((label, end) => {
      const box = h("input", {
        type: "number", step: "any", "aria-label": `${label} value`, class: "bound",
        on: {
          change: () => {
            const value = this.window.parse(box.value);
            this.texts[end] = null;
            if (value === null) this.show();
            else this.moved(end, value);
          },
        },
      });
      return box;
    });
    this.output = h("output", { class: "numbers unseen" });
    this.ticks = h("div", { class: "ticks", "aria-hidden": "true" });
    const button = (text, title, action) => h("button", { type: "button", class: "quiet", text, title, on: { click: action } });
    const auto = button("Auto", "Black and white where nearly all values begin and end", () => this.restore(null));
    const full = button("Full range", "Black at the smallest value, white at the largest", () => this.restore(this.window.full));
    this.label = h("span", { class: "label", text: "Contrast" });
    this.element = h(
      "div",
      { class: "contrast", role: "group", "aria-label": "Contrast" },
      h("div", { class: "row" }, this.label, this.output, h("label", { class: "end" }, "black ", this.boxes[0]),
        h("label", { class: "end" }, "white ", this.boxes[1]), auto, full),
      h("div", { class: "handles" }, this.canvas, this.handles),
      this.ticks,
    );
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.show();
  }

  /** Shows another window. `name` is that of its channel. */
  bind(window, name = null) {
    this.window = window;
    this.label.textContent = name === null ? "Contrast" : `Contrast of ${name}`;
    this.element.setAttribute("aria-label", this.label.textContent);
    this.show();
  }

  restore(window) {
    // Values that were measured on screen are measured again.
    if (window === null) this.measure?.();
    const { given } = this.window;
    // Auto means the measured window, even if metadata give another one.
    const measured = this.window.distribution?.empty === false ? [...this.window.distribution.window] : null;
    this.window.chosen = window ?? (given ? measured : null);
    this.show();
    this.change();
  }

  moved(end, value, dragged = null) {
    this.window.set(end, value);
    this.show(dragged);
    this.change();
  }

  /** Shows the window. The handle that is dragged stays under the pointer. */
  show(dragged = null) {
    const { window } = this;
    window.value.forEach((value, end) => {
      const handle = this.handles[end];
      const place = window.scale.place(window.near(value));
      if (handle !== dragged) handle.value = Math.round(place * STEPS);
      // Where both handles meet at the right end, only black can move.
      if (end === 0) handle.style.zIndex = place > 0.5 ? 1 : "";
      handle.setAttribute("aria-valuetext", window.text(value));
      const text = window.text(value);
      if (this.texts[end] !== text) this.boxes[end].value = text;
      this.texts[end] = text;
      this.boxes[end].style.width = text.length > 9 ? `${text.length + 4}ch` : "";
    });
    this.output.textContent = window.value.map((value) => window.text(value)).join(" – ");
    const texts = [0, 0.25, 0.5, 0.75, 1].map((place) => {
      const value = window.scale.value(place);
      return number(window.whole ? window.far(value) : Number(Number(window.text(value)).toPrecision(3)));
    });
    const fitting = texts.some((text) => text.length > 10) ? [texts[0], texts[4]] : texts;
    this.ticks.replaceChildren(...fitting.map((text) => h("span", { text })));
    this.draw();
  }

  draw() {
    const { canvas, window } = this;
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, canvas.width, canvas.height);
    const { distribution, scale } = window;
    if (!distribution || distribution.empty) return;
    const style = getComputedStyle(this.element);
    const edges = Array.from({ length: BARS + 1 }, (_, n) => scale.value(n / BARS));
    const below = edges.map((edge) => distribution.rankOf(edge));
    // The first bar includes the smallest value.
    below[0] = 0;
    const heights = Array.from({ length: BARS }, (_, n) => Math.log1p(Math.max(0, below[n + 1] - below[n]) * 2000));
    const most = Math.max(...heights) || 1;
    const [low, high] = window.value.map((value) => scale.place(window.near(value)));
    const width = canvas.width / BARS;
    heights.forEach((height, n) => {
      const middle = (n + 0.5) / BARS;
      context.fillStyle = style.getPropertyValue(middle >= low && middle <= high ? "--accent" : "--line-strong");
      const tall = (height / most) * canvas.height;
      context.fillRect(n * width, canvas.height - tall, width + 0.5, tall);
    });
  }
}
