// The contrast control: a histogram with two handles for the values shown as black and as white.

import { number } from "./describe.js";
import { h } from "./dom.js";

const STEPS = 1000;
const BINS = 64;
const SAMPLES = 20000;

/** Computes range, percentiles and histogram of planes, for use if the server has no statistics of the dataset. */
export function measure(planes) {
  const every = Math.max(1, Math.floor(planes.reduce((sum, plane) => sum + plane.data.length, 0) / SAMPLES));
  const values = [];
  for (const { data } of planes) {
    for (let at = 0; at < data.length; at += every) {
      const value = Number(data[at]);
      if (Number.isFinite(value)) values.push(value);
    }
  }
  values.sort((a, b) => a - b);
  if (values.length === 0) return null;
  const rank = (percent) => values[Math.round((percent / 100) * (values.length - 1))];
  const [min, max] = [values[0], values[values.length - 1]];
  const counts = Array(BINS).fill(0);
  for (const value of values) counts[max > min ? Math.min(BINS - 1, Math.floor(((value - min) / (max - min)) * BINS)) : 0] += 1;
  return { min, max, low: rank(1), high: rank(99.9), histogram: { min, max, counts } };
}

/** Converts a response of `/stats` to the same form; null if it has no values. */
export function fromStats(stats) {
  if (!stats || stats.min === null || stats.min === undefined) return null;
  const at = (percent, otherwise) => Number(stats.percentiles?.[percent] ?? otherwise);
  const [min, max] = [Number(stats.min), Number(stats.max)];
  return { min, max, low: at("1", min), high: at("99.9", max), histogram: stats.histogram };
}

/** The contrast control. `change` is called when the black or the white value has changed. */
export class Contrast {
  constructor(dataType, change) {
    this.change = change;
    this.whole = !dataType.startsWith("float");
    this.fixed = dataType === "uint8" ? [0, 255] : null;
    this.window = [...(this.fixed ?? [0, 1])];
    this.range = [...this.window];
    this.canvas = h("canvas", { width: 256, height: 48, "aria-hidden": "true" });
    this.handles = ["Black", "White"].map((label, end) =>
      h("input", {
        type: "range", min: 0, max: STEPS, step: 1, "aria-label": `${label}: the value shown as ${label.toLowerCase()}`,
        on: { input: () => this.moved(end) },
      }),
    );
    this.output = h("output", { class: "numbers" });
    const auto = h("button", { type: "button", class: "quiet", text: "Auto", on: { click: () => this.auto() } });
    this.element = h(
      "div",
      { class: "contrast", role: "group", "aria-label": "Contrast" },
      h("div", { class: "row" }, h("span", { class: "label", text: "Contrast" }), this.output, auto),
      h("div", { class: "handles" }, this.canvas, this.handles),
    );
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.touched = false;
    this.show();
  }

  /** Adopts measured statistics. A window chosen by the user is kept. */
  know(measured, final) {
    if (!measured || this.final) return;
    this.final = final;
    this.measured = measured;
    this.range = this.fixed ? [...this.fixed] : [measured.min, measured.max];
    if (!this.touched) this.auto();
    else this.show();
  }

  auto() {
    this.touched = false;
    if (this.measured) {
      const { low, high, min, max } = this.measured;
      this.window = high > low ? [low, high] : max > min ? [min, max] : [Math.min(0, min), max];
    }
    this.show();
    this.change();
  }

  moved(end) {
    this.touched = true;
    const [min, max] = this.range;
    let value = min + ((max - min) * Number(this.handles[end].value)) / STEPS;
    if (this.whole) value = Math.round(value);
    this.window[end] = end === 0 ? Math.min(value, this.window[1]) : Math.max(value, this.window[0]);
    this.show();
    this.change();
  }

  show() {
    const [min, max] = this.range;
    this.window.forEach((value, end) => {
      const handle = this.handles[end];
      handle.value = max > min ? Math.round(((value - min) / (max - min)) * STEPS) : end * STEPS;
      handle.setAttribute("aria-valuetext", number(value));
    });
    this.output.textContent = this.window.map(number).join(" – ");
    this.draw();
  }

  draw() {
    const { canvas, range } = this;
    const histogram = this.measured?.histogram;
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, canvas.width, canvas.height);
    if (!histogram) return;
    const style = getComputedStyle(this.element);
    const { counts } = histogram;
    const most = Math.log1p(Math.max(...counts));
    const place = (value) => ((value - range[0]) / (range[1] - range[0] || 1)) * canvas.width;
    const [from, to] = [Number(histogram.min), Number(histogram.max)];
    counts.forEach((count, bin) => {
      const left = place(from + ((to - from) * bin) / counts.length);
      const right = place(from + ((to - from) * (bin + 1)) / counts.length);
      const high = most ? (Math.log1p(count) / most) * canvas.height : 0;
      const middle = from + ((to - from) * (bin + 0.5)) / counts.length;
      const inside = middle >= this.window[0] && middle <= this.window[1];
      context.fillStyle = style.getPropertyValue(inside ? "--accent" : "--line-strong");
      context.fillRect(left, canvas.height - high, Math.max(1, right - left + 0.5), high);
    });
  }
}
