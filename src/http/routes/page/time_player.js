// The player of a time axis. It shows the frame that is due; if the server is slower, it leaves frames out.

import { h } from "./dom.js";

/** Frames per second: those offered, and the default. */
const SPEEDS = [1, 2, 5, 10, 15, 24];
const SPEED = 5;

/** Maximum number of frames that are fetched ahead. */
const AHEAD = 3;

/** Number of fetches whose median decides whether frames are left out. A single slow answer changes nothing. */
const MEASURED = 5;

/** Time after which a frame is shown that has not arrived as a whole. */
const PATIENCE = 10000;

/** Returns the number of the axis of time; -1 if there is none or it has one element. */
export function timeAxis(volume) {
  const named = volume.stack ? volume.stack.time : volume.axes.findIndex((name) => /^(t|time|frame|timepoint)s?$/i.test(name));
  return named >= 0 && volume.dimensions[named] > 1 ? named : -1;
}

/** The player. `load(position)` fetches what a position shows, and resolves when it has arrived. */
export class TimePlayer {
  constructor(volume, state, axis) {
    Object.assign(this, { volume, state, axis, load: null, speed: SPEED, isLooping: true, run: null, costs: [] });
    this.count = volume.dimensions[axis];
    const button = (label, text, action) =>
      h("button", { type: "button", class: "quiet", "aria-label": label, title: label, text, on: { click: action } });
    this.play = button("Play", "▶", () => this.toggle());
    this.speeds = h("select", { "aria-label": "Frames per second", on: { change: () => this.setSpeed(Number(this.speeds.value)) } },
      SPEEDS.map((speed) => h("option", { value: speed, text: `${speed} / s` })));
    this.loop = h("input", { type: "checkbox", on: { change: () => this.setLooping(this.loop.checked) } });
    this.note = h("span", { class: "faint", role: "status" });
    this.element = h("div", { class: "player", role: "group", "aria-label": "Time" },
      h("span", { class: "label", text: "Time" }),
      button("Previous time point", "◂", () => this.step(-1)), this.play, button("Next time point", "▸", () => this.step(1)),
      this.speeds, h("label", {}, this.loop, " Loop"), this.note);
    state.register("speed", {
      read: (text) => this.adopt({ speed: SPEEDS.find((speed) => String(speed) === text) ?? SPEED }),
      write: () => (this.speed === SPEED ? null : String(this.speed)),
    });
    state.register("loop", {
      read: (text) => this.adopt({ isLooping: text !== "no" }),
      write: () => (this.isLooping ? null : "no"),
    });
    document.addEventListener("visibilitychange", () => document.hidden && this.pause());
  }

  get index() {
    return this.state.position[this.axis];
  }

  at(index) {
    const position = [...this.state.position];
    position[this.axis] = index;
    return position;
  }

  /** Connects the player with the preview, whose keys then control it: P plays, [ and ] step. */
  attach({ element, load }) {
    this.load = load;
    element.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey || /^(input|select|textarea)$/i.test(event.target.tagName)) return;
      const action = { p: () => this.toggle(), "[": () => this.step(-1), "]": () => this.step(1) }[event.key];
      if (!action) return;
      event.preventDefault();
      action();
    });
  }

  step(by) {
    this.pause();
    const next = this.index + by;
    const wrapped = this.isLooping ? (next + this.count) % this.count : Math.min(this.count - 1, Math.max(0, next));
    this.state.set({ position: this.at(wrapped) });
  }

  adopt(settings) {
    Object.assign(this, settings);
    this.speeds.value = this.speed;
    this.loop.checked = this.isLooping;
  }

  setSpeed(speed) {
    this.adopt({ speed });
    this.state.changed("speed");
  }

  setLooping(isLooping) {
    this.adopt({ isLooping });
    this.state.changed("loop");
  }

  toggle() {
    if (this.run) this.pause();
    else {
      if (!this.isLooping && this.index === this.count - 1) this.state.set({ position: this.at(0) });
      this.start();
    }
  }

  pause() {
    this.run = null;
    this.note.textContent = "";
    this.showButton();
  }

  showButton() {
    this.play.textContent = this.run ? "❚❚" : "▶";
    this.play.setAttribute("aria-label", this.run ? "Pause" : "Play");
    this.play.title = this.run ? "Pause" : "Play";
  }

  /** Returns the frame `by` places after `index`; null after the last one, unless the player loops. */
  after(index, by) {
    if (index + by < this.count) return index + by;
    if (!this.isLooping) return index < this.count - 1 ? this.count - 1 : null;
    return (index + by) % this.count;
  }

  /** Fetches a frame, and records how long that takes. */
  async fetch(index) {
    const begun = performance.now();
    const timeout = new Promise((resolve) => setTimeout(resolve, PATIENCE));
    await Promise.race([Promise.resolve(this.load?.(this.at(index))).catch(() => null), timeout]);
    this.costs = [...this.costs, performance.now() - begun].slice(-MEASURED);
  }

  /** Returns how many milliseconds the server needs for a frame; 0 before that is known. */
  get cost() {
    const { costs } = this;
    return costs.length < AHEAD ? 0 : [...costs].sort((a, b) => a - b)[costs.length >> 1];
  }

  async start() {
    const run = {};
    this.run = run;
    this.showButton();
    let shown = this.index;
    let due = performance.now() + 1000 / this.speed;
    let coming = new Map();
    while (this.run === run) {
      const frame = 1000 / this.speed;
      // Several frames are fetched at once, so that one may take several times as long as it is shown.
      const stride = Math.max(1, Math.min(this.count - 1, Math.ceil(this.cost / frame / AHEAD)));
      const ahead = [];
      for (let index = this.after(shown, stride); index !== null && ahead.length < AHEAD && !ahead.includes(index);) {
        ahead.push(index);
        index = this.after(index, stride);
      }
      if (ahead.length === 0) break;
      coming = new Map(ahead.map((index) => [index, coming.get(index) ?? this.fetch(index)]));
      const [next] = ahead;
      await coming.get(next);
      const wait = due + (stride - 1) * frame - performance.now();
      if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
      if (this.run !== run) return;
      // A late frame is shown for at least half its time, or else the next one would replace it before it is drawn.
      due = Math.max(due + stride * frame, performance.now() + frame / 2);
      // The reader may have moved to another time point meanwhile; playing goes on from there.
      if (this.index !== shown) {
        shown = this.index;
        coming.clear();
        continue;
      }
      this.note.textContent = stride > 1 ? `shows 1 in ${stride} time points: the server needs ${Math.round(this.cost)} ms for each` : "";
      coming.delete(next);
      this.state.set({ position: this.at(next) });
      shown = next;
    }
    if (this.run === run) this.pause();
  }
}
