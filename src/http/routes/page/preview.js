// The preview of a volume: orthogonal planes through one point, and a slider for every axis.

import { Contrast, fromStats, measure } from "./contrast.js";
import { draw } from "./colours.js";
import { number, unit } from "./describe.js";
import { choice, h } from "./dom.js";
import { Slot, elementAt, fetchPlane, isKept } from "./planes.js";
import { cut, extents, isColour, kindOf, planesOf } from "./volume.js";

const GAP = 6;
const MOST_ZOOM = 256;

export class Preview {
  constructor(info, volume, statsWanted) {
    this.volume = volume;
    this.position = volume.dimensions.map((n) => Math.max(0, Math.floor((n - 1) / 2)));
    this.kind = kindOf(info, volume, null);
    this.dragging = false;
    this.colour = isColour(volume);
    this.zoom = 1;
    if (this.colour) this.position[volume.channel] = 0;
    this.centre = [...this.position];
    this.axes = planesOf(volume);
    this.extents = extents(volume);
    this.planes = this.axes.map((axes, n) => this.makePlane(axes, n));
    this.contrast = new Contrast(volume.dataType, () => this.redraw());
    if (this.colour) this.contrast.touched = true;
    this.sliders = volume.axes.map((_, axis) => this.makeSlider(axis));
    this.readout = h("output", { class: "readout", "aria-live": "off" });
    this.grid = h("div", { class: `planes planes-${this.planes.length}` }, this.planes.map((plane) => plane.element));
    this.element = h(
      "section",
      { class: "preview card", "aria-label": "Preview" },
      this.grid,
      this.readout,
      h("div", { class: "controls" }, this.sliders.map((slider) => slider.element), this.makeModes(), this.contrast.element),
      h("p", { class: "hint", text: this.hint() }),
    );
    this.modeChanged();
    this.observer = new ResizeObserver(() => this.layout());
    this.observer.observe(this.element);
    statsWanted.then((stats) => {
      if (stats && !this.chosen) {
        this.kind = kindOf(info, volume, stats);
        const input = this.element.querySelector(`input[name=kind][value=${this.kind}]`);
        if (input) input.checked = true;
        this.modeChanged();
      }
      this.contrast.know(fromStats(stats), true);
    });
  }

  hint() {
    const keys = "Arrow keys move the point within a plane. Page Up and Page Down step through the planes. + and − zoom.";
    return this.planes.length > 1 ? `Click in a plane to move the others; the mouse wheel then steps through the planes parallel to it. ${keys}` : keys;
  }

  makeModes() {
    const kinds = choice("kind", "Show as", [["image", "Image"], ["segmentation", "Segmentation"]], this.kind, (kind) => {
      this.chosen = true;
      this.kind = kind;
      this.modeChanged();
      this.redraw();
    });
    const colours = choice("colour", "Channels", [["all", "Colour"], ["one", "One channel"]], "all", (value) => {
      this.colour = value === "all";
      this.modeChanged();
      this.update();
    });
    const zoom = (label, text, factor) =>
      h("button", { type: "button", class: "quiet", "aria-label": label, text, on: { click: () => this.zoomTo(this.zoom * factor) } });
    this.zoomed = h("output", { class: "numbers", text: "1×" });
    return h(
      "div",
      { class: "modes" },
      isColour(this.volume) ? colours : kinds,
      h("div", { class: "zoom", role: "group", "aria-label": "Zoom" }, zoom("Zoom out", "−", 0.5), this.zoomed, zoom("Zoom in", "+", 2)),
    );
  }

  zoomTo(zoom, keepLevels = false) {
    if (!keepLevels) for (const plane of this.planes) plane.coarser = 0;
    const longest = Math.max(...this.axes.flat().map((axis) => (axis === null ? 1 : this.volume.dimensions[axis])));
    this.zoom = Math.min(Math.max(zoom, 1), MOST_ZOOM, 2 ** Math.max(0, Math.ceil(Math.log2(longest / 16))));
    this.zoomed.textContent = `${this.zoom}×`;
    this.update();
  }

  modeChanged() {
    this.contrast.element.hidden = this.kind === "segmentation";
    if (isColour(this.volume)) this.sliders[this.volume.channel].element.hidden = this.colour;
  }

  // ---------------------------------------------------------------- sliders

  makeSlider(axis) {
    const { axes, dimensions } = this.volume;
    const last = Math.max(0, dimensions[axis] - 1);
    const range = h("input", {
      type: "range", min: 0, max: last, step: 1, value: this.position[axis], "aria-label": `Position along ${axes[axis]}`,
      disabled: last === 0,
      on: { input: () => this.moveTo({ [axis]: Number(range.value) }) },
    });
    const box = h("input", {
      type: "number", min: 0, max: last, step: 1, value: this.position[axis], "aria-label": `Index along ${axes[axis]}`,
      disabled: last === 0,
      on: { change: () => box.value !== "" && this.moveTo({ [axis]: Number(box.value) }) },
    });
    const physical = h("span", { class: "physical" });
    const element = h("div", { class: "slider" }, h("span", { class: "label", text: axes[axis] }), range, box, physical);
    const show = () => {
      range.value = this.position[axis];
      box.value = this.position[axis];
      physical.textContent = this.physical(axis);
      range.setAttribute("aria-valuetext", `${this.position[axis]} of ${last}${this.physical(axis) && `, ${this.physical(axis)}`}`);
    };
    return { element, show };
  }

  /** Formats the position along an axis with its unit; empty if the unit is unknown. */
  physical(axis, position = this.position) {
    const { units, resolution } = this.volume;
    return units[axis] ? `${number(position[axis] * resolution[axis])} ${unit(units[axis])}` : "";
  }

  // ---------------------------------------------------------------- planes

  makePlane(axes, n) {
    const names = axes.filter((axis) => axis !== null).map((axis) => this.volume.axes[axis]);
    const label = names.length > 1 ? `${names.join("")} plane` : `values along ${names[0]}`;
    const canvas = h("canvas", {
      tabindex: 0, role: "application", "aria-roledescription": "plane", "aria-label": `${label}: arrow keys move the point`,
    });
    const lines = [h("div", { class: "line across" }), h("div", { class: "line along" })];
    const message = h("p", { class: "message", role: "status", hidden: true });
    const caption = h("span", { class: "caption", text: names.join("") });
    const element = h("div", { class: `plane plane-${n}` }, canvas, lines, caption, message);
    const plane = { axes, canvas, lines, message, element, label, shown: null, coarser: 0 };
    plane.slot = new Slot(
      (data) => this.arrived(plane, data),
      (error, request) => this.failed(plane, error, request),
      (busy) => element.classList.toggle("busy", busy),
    );
    this.listen(plane);
    return plane;
  }

  listen(plane) {
    const { canvas, axes } = plane;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      const fractions = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
      return fractions.map((fraction) => Math.min(0.999999, Math.max(0, fraction)));
    };
    const go = (event) => {
      if (!plane.shown) return;
      const voxels = this.voxelsAt(plane, place(event));
      this.moveTo(Object.fromEntries(axes.map((axis, n) => [axis, voxels[n]]).filter(([axis]) => axis !== null)));
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      if (event.pointerType !== "touch") canvas.setPointerCapture(event.pointerId);
      this.dragging = canvas.hasPointerCapture(event.pointerId);
      canvas.focus({ preventScroll: true });
      go(event);
    });
    canvas.addEventListener("lostpointercapture", () => {
      this.dragging = false;
      this.moveTo({});
    });
    canvas.addEventListener("pointermove", (event) => {
      if (canvas.hasPointerCapture(event.pointerId)) go(event);
      this.tell(plane, place(event));
    });
    canvas.addEventListener("pointerleave", () => this.tellHere());
    canvas.addEventListener("wheel", (event) => {
      // Without focus on the plane, the wheel scrolls the page.
      if (document.activeElement !== canvas || event.ctrlKey || event.deltaY === 0) return;
      event.preventDefault();
      this.stepThrough(plane, Math.sign(event.deltaY));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.key(plane, event));
  }

  key(plane, event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const by = event.shiftKey ? 10 : 1;
    const moves = {
      ArrowLeft: [plane.axes[0], -by], ArrowRight: [plane.axes[0], by],
      ArrowUp: [plane.axes[1], -by], ArrowDown: [plane.axes[1], by],
    };
    if (event.key in moves) {
      const [axis, change] = moves[event.key];
      if (axis !== null) this.moveTo({ [axis]: this.position[axis] + change });
    } else if (event.key === "+" || event.key === "=") this.zoomTo(this.zoom * 2);
    else if (event.key === "-") this.zoomTo(this.zoom / 2);
    else if (event.key === "PageUp" || event.key === ",") this.stepThrough(plane, -by);
    else if (event.key === "PageDown" || event.key === ".") this.stepThrough(plane, by);
    else return;
    event.preventDefault();
  }

  /**
   * Returns the axis perpendicular to a plane: the axis that only the other planes show, otherwise the first axis not
   * shown that has more than one element.
   */
  normal(plane) {
    const shown = new Set(this.axes.flat());
    const candidates = [...shown].filter((axis) => axis !== null && !plane.axes.includes(axis));
    const others = [...this.volume.axes.keys()].filter((axis) => !shown.has(axis) && this.volume.dimensions[axis] > 1);
    return candidates[0] ?? others[0];
  }

  stepThrough(plane, by) {
    const axis = this.normal(plane);
    if (axis === undefined) return;
    const step = Math.max(1, plane.shown ? Math.round(this.volume.levels[plane.shown.level].factors[axis]) : 1);
    this.moveTo({ [axis]: this.position[axis] + by * step });
  }

  moveTo(changes) {
    for (const [axis, value] of Object.entries(changes)) {
      this.position[axis] = Math.min(this.volume.dimensions[axis] - 1, Math.max(0, Math.round(value)));
    }
    if (Object.keys(changes).length) this.moved = Object.keys(changes).map(Number);
    // The displayed part does not move while the point is dragged.
    if (!this.dragging) this.centre = [...this.position];
    this.update();
  }

  // ---------------------------------------------------------------- display

  /** Sizes the planes to fit the available width. */
  layout() {
    const width = this.grid.clientWidth;
    if (!width || width === this.width) return;
    this.width = width;
    const [[x, y], [z] = []] = this.axes;
    const size = (axis) => (axis === null || axis === undefined ? 0 : this.extents[axis]);
    const gap = z === undefined ? 0 : GAP;
    const room = [width - gap, Math.max(320, Math.min(innerHeight * 0.9, 900)) - gap];
    const scale = Math.min(room[0] / (size(x) + size(z)), y === null ? Infinity : room[1] / (size(y) + size(z)));
    const pixels = (axis) => (axis === null ? 48 : Math.max(24, Math.floor(size(axis) * scale)));
    for (const plane of this.planes) {
      plane.size = plane.axes.map(pixels);
      plane.element.style.width = `${plane.size[0]}px`;
      plane.element.style.height = `${plane.size[1]}px`;
    }
    if (z !== undefined) {
      this.grid.style.gridTemplateColumns = `${pixels(x)}px ${pixels(z)}px`;
      // The fourth corner is free. It holds the readout if there is enough room.
      const fits = pixels(z) >= 150;
      this.readout.classList.toggle("corner", fits);
      if (fits) this.grid.append(this.readout);
      else this.grid.after(this.readout);
    }
    this.update();
  }

  request(plane, position = this.position) {
    const pixels = plane.size.map((size) => size * Math.min(devicePixelRatio || 1, 2));
    const options = { coarser: plane.coarser, zoom: this.zoom, centre: this.centre };
    return cut(this.volume, plane.axes, position, pixels, this.colour, options);
  }

  /** Converts fractions of the displayed part of a plane to voxels of the finest level. */
  voxelsAt(plane, fractions) {
    return plane.shown.box.map(([from, to], n) => {
      const axis = plane.axes[n];
      return axis === null ? 0 : Math.min(Math.floor(from + fractions[n] * (to - from)), this.volume.dimensions[axis] - 1);
    });
  }

  /** Returns the point as fractions of the displayed part of a plane. It may lie outside until a new plane arrives. */
  fractionsOf(plane) {
    return plane.shown.box.map(([from, to], n) =>
      plane.axes[n] === null ? 0 : (this.position[plane.axes[n]] + 0.5 - from) / (to - from),
    );
  }

  update() {
    for (const slider of this.sliders) slider.show();
    for (const plane of this.planes) {
      if (!plane.size) continue;
      this.cross(plane);
      const request = this.request(plane);
      if (plane.shown?.key === request.key && !plane.slot.running) continue;
      plane.slot.want(request);
    }
    this.tellHere();
  }

  arrived(plane, data) {
    plane.shown = data;
    plane.message.hidden = true;
    const { canvas } = plane;
    Object.assign(canvas.dataset, { path: data.path, start: data.start, stop: data.stop, step: data.step });
    canvas.classList.toggle("coarse", data.width < plane.size[0] * 0.8);
    const shown = this.planes.map((other) => other.shown).filter(Boolean);
    if (shown.length === this.planes.length && !this.contrast.measured) this.contrast.know(measure(shown), false);
    this.paint(plane);
    this.cross(plane);
    this.tellHere();
    clearTimeout(this.idle);
    this.idle = setTimeout(() => this.prefetch(), 300);
  }

  failed(plane, error, request) {
    // A coarser level, or a smaller part of the plane, may be within the server's limit.
    if (error.status === 413 && !request.last && plane.coarser < 8) {
      plane.coarser += 1;
      plane.slot.want(this.request(plane));
      return;
    }
    if (error.status === 413 && this.zoom < MOST_ZOOM) {
      const before = this.zoom;
      if (request.zoom === this.zoom) this.zoomTo(this.zoom * 2, true);
      if (this.zoom !== before || request.zoom !== this.zoom) return;
    }
    plane.shown = null;
    const why = {
      413: "This plane is too large to decode. ",
      422: "A stored block is damaged. ",
      501: "The server cannot decode this volume. ",
    };
    plane.message.textContent = `${why[error.status] ?? ""}${error.message}`;
    plane.message.hidden = false;
    plane.canvas.width = plane.canvas.width; // clears it
    this.tellHere();
  }

  redraw() {
    for (const plane of this.planes ?? []) this.paint(plane);
  }

  paint(plane) {
    if (!plane.shown) return;
    const { window } = this.contrast;
    draw(plane.canvas, plane.shown, this.kind, window);
    Object.assign(plane.canvas.dataset, { kind: this.kind, window: this.kind === "image" ? window : "" });
  }

  cross(plane) {
    if (!plane.shown) return;
    const [along, across] = this.fractionsOf(plane);
    plane.lines[1].style.left = `${along * 100}%`;
    plane.lines[0].style.top = `${across * 100}%`;
    plane.lines[0].hidden = plane.axes[1] === null;
  }

  /** Shows the value and position at fractions of a plane. */
  tell(plane, fractions) {
    const { shown } = plane;
    if (!shown) return;
    const within = (fraction, n) => Math.min(n - 1, Math.max(0, Math.floor(fraction * n)));
    const [column, row] = [within(fractions[0], shown.width), within(fractions[1], shown.height)];
    const position = [...this.position];
    this.voxelsAt(plane, fractions).forEach((voxel, n) => {
      if (plane.axes[n] !== null) position[plane.axes[n]] = voxel;
    });
    const channels = this.colour ? [0, 1, 2] : [0];
    this.say(position, channels.map((channel) => elementAt(shown, column, row, channel)));
  }

  tellHere() {
    const plane = this.planes.find((candidate) => candidate.shown);
    if (plane) this.tell(plane, this.fractionsOf(plane));
    else this.say(this.position, []);
  }

  say(position, values) {
    const { axes, levels } = this.volume;
    const places = axes.map((name, axis) => {
      const physical = this.physical(axis, position);
      return h("span", {}, h("b", { text: name }), ` ${position[axis]}`, physical && h("span", { class: "faint", text: ` (${physical})` }));
    });
    const level = this.planes.find((plane) => plane.shown)?.shown.level;
    this.readout.replaceChildren(
      ...places,
      values.length ? h("span", { class: "value" }, h("b", { text: "value" }), ` ${values.map(number).join(", ")}`) : "",
      levels.length > 1 && level !== undefined ? h("span", { class: "faint", text: `level ${level + 1} of ${levels.length}` }) : "",
    );
  }

  /** Fetches the next plane on either side along the axis of the last move, unless another request is running. */
  async prefetch() {
    const plane = this.planes.find((candidate) => candidate.size && (this.moved ?? []).includes(this.normal(candidate)));
    if (!plane?.shown) return;
    const axis = this.normal(plane);
    const step = Math.max(1, Math.round(this.volume.levels[plane.shown.level].factors[axis]));
    for (const by of [step, -step]) {
      const position = [...this.position];
      position[axis] += by;
      if (position[axis] < 0 || position[axis] >= this.volume.dimensions[axis] || plane.slot.running) continue;
      const request = this.request(plane, position);
      if (!isKept(request)) await fetchPlane(request).catch(() => null);
    }
  }
}
