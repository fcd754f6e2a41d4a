// One plane of the preview: a canvas that shows tiles, with crosshair, scale bar and messages over it.

import { h } from "./dom.js";
import { listen } from "./gestures.js";
import { isInside } from "./planes.js";
import { passedText } from "./preview_controls.js";
import { rulerOf } from "./readout.js";
import { roundLength } from "./viewport.js";

/** Length of the scale bar in CSS pixels, at most. */
const BAR = 110;

/** Number of pixels of tiles that are kept painted: 128 MiB. */
const MOST_PAINTED = 2 ** 25;
/** The painted tiles, in the order of their last use, with the pixels of each. */
const painted = new Map();
let paintedPixels = 0;

/** Returns the canvas of a tile, painted with the current settings of the display. */
function pictureOf(tile, display) {
  tile.canvas ??= document.createElement("canvas");
  if (tile.version !== display.version) {
    display.paint(tile.canvas, tile.pictures);
    tile.version = display.version;
  }
  const pixels = tile.canvas.width * tile.canvas.height;
  paintedPixels += pixels - (painted.get(tile) ?? 0);
  painted.delete(tile);
  painted.set(tile, pixels);
  for (const [old, freed] of painted) {
    if (paintedPixels <= MOST_PAINTED || old === tile) break;
    painted.delete(old);
    paintedPixels -= freed;
    old.canvas = null;
    old.version = undefined;
  }
  return tile.canvas;
}

/** Returns a pattern of diagonal lines, transparent between them. */
function hatch(context, colour, width, gap) {
  const tile = document.createElement("canvas");
  tile.width = gap;
  tile.height = gap;
  const drawing = tile.getContext("2d");
  drawing.strokeStyle = colour;
  drawing.lineWidth = width;
  for (const shift of [-gap, 0, gap]) {
    drawing.moveTo(shift - 1, gap + 1);
    drawing.lineTo(shift + gap + 1, -1);
  }
  drawing.stroke();
  return context.createPattern(tile, "repeat");
}

/** Returns the pictures of the volume itself: those that are there, without labels on top. */
function imagesOf(pictures) {
  return pictures.filter((picture) => picture && !picture.of);
}

/** Returns an area of a part, [left, right, top, bottom] in its elements, as ranges of elements of the finest level. */
function boxOf(part, [left, right, top, bottom]) {
  return [[left, right], [top, bottom]].map((range, n) => {
    const axis = part.axes[n];
    if (axis === null) return [0, 1];
    return range.map((at) => (part.start[axis] + at * part.step[axis]) * part.level.factors[axis]);
  });
}

export class PlaneView {
  /** `preview` has the display and the state. Its `navigation` is told of gestures. */
  constructor(preview, axes, number) {
    const { volume } = preview;
    const names = axes.filter((axis) => axis !== null).map((axis) => volume.axes[axis]);
    Object.assign(this, { preview, axes, number, view: null, fine: [], coarse: [], old: [], label: names.join("") });
    this.canvas = h("canvas", {
      tabindex: 0, role: "application", "aria-roledescription": "plane",
      "aria-label": `${names.length > 1 ? `${names.join("")} plane` : `values along ${names[0]}`}: arrow keys move the point`,
    });
    this.lines = [h("div", { class: "line across" }), h("div", { class: "line along" })];
    this.message = h("p", { class: "message", role: "status", hidden: true });
    this.bar = h("div", { class: "bar-scale" }, h("span"));
    this.note = h("div", { class: "passing", "aria-hidden": "true" });
    this.element = h(
      "div", { class: `plane plane-${number}` },
      this.canvas, this.lines, names.length > 1 && h("span", { class: "caption", text: names.join("") }), this.bar, this.note, this.message,
    );
    this.context = this.canvas.getContext("2d");
    this.patterns = {
      damaged: hatch(this.context, "#f5a524", 2, 10),
      lost: "rgb(40 20 0 / 45%)",
      hole: hatch(this.context, "rgb(255 255 255 / 22%)", 1, 8),
    };
    listen(this.canvas, {
      pan: (dx, dy) => preview.navigation.pan(this, dx, dy),
      zoom: (factor, point) => preview.navigation.zoomAt(this, factor, point),
      step: (count) => preview.navigation.stepThrough(this, count),
      click: (point) => preview.navigation.pick(this, point),
      doubleClick: (point) => preview.navigation.centreAt(this, point),
      hover: (point) => preview.hover(this, point),
      passed: (kind) => this.say(passedText(kind)),
    }, (kind) => preview.isExpanded || (kind !== "touch" && document.activeElement === this.canvas));
    this.canvas.addEventListener("keydown", (event) => preview.navigation.key(this, event));
    this.canvas.addEventListener("focus", () => (preview.active = this));
    // Tests read the tiles that are on screen.
    this.canvas.tiles = () => this.fine.filter(({ pictures }) => pictures?.some(Boolean)).map((tile) => ({
      ...this.marksOf([tile]), place: tile.start.map((at, n) => at / tile.step[n]), canvas: pictureOf(tile, preview.display),
    }));
  }

  get isShown() {
    return !this.element.hidden;
  }

  /** Shows a text over the plane for a moment. */
  say(text) {
    this.note.textContent = text;
    this.note.classList.add("on");
    clearTimeout(this.noteTimer);
    this.noteTimer = setTimeout(() => this.note.classList.remove("on"), 1600);
  }

  /** Shows a text in place of the picture; null shows the picture. */
  explain(text) {
    this.message.hidden = text === null;
    if (text !== null && this.message.textContent !== text) this.message.textContent = text;
  }

  resize(width, height) {
    this.size = [width, height];
    this.element.style.width = `${width}px`;
    this.element.style.height = `${height}px`;
  }

  /** Adopts tiles: those of the view, and coarser ones to show meanwhile. Tiles that have not arrived are left out. */
  show(view, fine, coarse, isComplete) {
    if (this.fine.length && this.fine.every((tile) => tile.pictures) && this.isComplete) this.old = this.fine;
    Object.assign(this, { view, fine, coarse, isComplete });
    this.element.classList.toggle("busy", !isComplete);
    delete this.canvas.dataset.drawn;
    this.draw();
  }

  /** Adds a tile of an earlier view, which arrived late, below the current ones. */
  pass(tile) {
    this.old = [...this.old.filter(({ box }) => String(box) !== String(tile.box)).slice(-24), tile];
    this.draw();
  }

  draw() {
    if (!this.frame && this.view) {
      this.frame = requestAnimationFrame(() => {
        this.frame = null;
        this.drawNow();
      });
    }
  }

  drawNow() {
    const { canvas, context, view, preview } = this;
    const density = preview.density;
    const [width, height] = this.size.map((size) => Math.max(1, Math.round(size * density)));
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    const edges = (box) => {
      const low = view.toPixels(box.map(([from]) => from)).map((at) => Math.round(at * density));
      const high = view.toPixels(box.map(([, to]) => to)).map((at) => Math.round(at * density));
      return [low[0], low[1], Math.max(1, high[0] - low[0]), Math.max(1, high[1] - low[1])];
    };
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, width, height);
    context.save();
    context.beginPath();
    context.rect(...edges([0, 1].map((n) => [0, view.length(n)])));
    context.clip();
    context.fillStyle = "#000";
    context.fillRect(0, 0, width, height);
    const { display } = preview;
    const isWhole = this.isComplete && this.fine.every(({ pictures }) => pictures && display.damageOf(pictures).lost.length === 0);
    const below = isWhole ? [] : [...(this.isComplete ? [] : this.old), ...this.coarse];
    const arrived = (tile) => tile.pictures?.some(Boolean);
    for (const tile of [...below.filter(arrived), ...this.fine.filter(arrived)]) {
      const area = edges(tile.box);
      const picture = pictureOf(tile, display);
      // Magnified elements keep their edges. A coarse picture that a finer one will replace is blurred.
      const isSmaller = area[2] < picture.width;
      context.imageSmoothingEnabled = display.kind === "image" && (isSmaller || below.includes(tile));
      context.imageSmoothingQuality = isSmaller ? "medium" : "low";
      const { picture: part, lost: areas } = display.damageOf(tile.pictures);
      const lost = areas.map((one) => edges(boxOf(part, one)));
      if (lost.length) {
        // Coarser tiles show through where this one is damaged.
        context.save();
        context.beginPath();
        context.rect(0, 0, width, height);
        for (const [left, top, wide, high] of lost) context.rect(left, top, wide, high);
        context.clip("evenodd");
      }
      context.drawImage(picture, ...area);
      if (lost.length) context.restore();
    }
    for (const tile of this.fine) {
      if (!tile.pictures) {
        if (tile.error) for (const pattern of [this.patterns.lost, this.patterns.damaged]) this.fill(edges(tile.box), pattern);
        continue;
      }
      for (const part of imagesOf(tile.pictures)) for (const area of part.holes) this.fill(edges(boxOf(part, area)), this.patterns.hole);
      const { picture, lost, partial } = display.damageOf(tile.pictures);
      for (const area of lost) this.fill(edges(boxOf(picture, area)), this.patterns.lost);
      // Blocks of several channels may have the same place.
      const places = new Map(partial.map((area) => [area.slice(0, 4).join(), area]));
      for (const area of places.values()) this.fill(edges(boxOf(picture, area)), this.patterns.damaged);
    }
    context.restore();
    this.mark();
    this.showCross();
    this.showBar();
    this.preview.drawing?.place(this);
  }

  fill(area, pattern) {
    this.context.fillStyle = pattern;
    this.context.fillRect(...area);
  }

  /** Returns what tiles show: the level's path and the box of elements. */
  marksOf(tiles) {
    const parts = tiles.map(({ pictures }) => imagesOf(pictures)[0]);
    const extreme = (name, choose) => parts[0][name].map((_, axis) => choose(...parts.map((part) => part[name][axis])));
    return {
      path: parts[0].path, start: String(extreme("start", Math.min)), stop: String(extreme("stop", Math.max)), step: String(parts[0].step),
      ...Object.fromEntries(Object.entries(this.preview.display.marks()).map(([key, value]) => [key, String(value)])),
    };
  }

  /** Writes to the canvas's data what it shows. */
  mark() {
    const { dataset } = this.canvas;
    const tiles = this.fine.filter(({ pictures }) => pictures?.some(Boolean));
    dataset.view = [...this.view.origin, ...this.view.scale].map((n) => Number(n.toPrecision(9)));
    if (tiles.length && this.isComplete) Object.assign(dataset, this.marksOf(tiles));
    dataset.drawn = "";
  }

  showCross() {
    const position = this.axes.map((axis) => (axis === null ? 0.5 : this.preview.state.position[axis] + 0.5));
    const [along, across] = this.view.toPixels(position);
    this.lines[1].style.left = `${along}px`;
    this.lines[0].style.top = `${across}px`;
    this.lines[1].hidden = along < 0 || along > this.size[0];
    this.lines[0].hidden = this.axes[1] === null || across < 0 || across > this.size[1];
  }

  showBar() {
    const [axis] = this.axes;
    const { text, unit } = rulerOf(this.preview.volume, axis);
    const each = unit / this.view.scale[0];
    const most = Math.min(BAR, this.size[0] * 0.4) * each;
    const length = roundLength(most);
    this.bar.hidden = this.size[0] < 90 || !(length > 0);
    this.bar.style.width = `${length / each}px`;
    this.bar.firstChild.textContent = text(length);
  }

  /** Returns the topmost tile that has an element of the finest level, with its column and row: null if there is none. */
  sampleAt(elements) {
    for (const tiles of [this.fine, this.coarse]) {
      for (const tile of tiles) {
        const parts = imagesOf(tile.pictures ?? []);
        const [part] = parts;
        if (!part) continue;
        const [column, row] = tile.box.map(([from, to], n) => Math.floor(((elements[n] + 0.5 - from) / (to - from)) * (n === 0 ? part.width : part.height)));
        if (column < 0 || row < 0 || column >= part.width || row >= part.height) continue;
        return { tile, column, row, isHole: parts.every(({ holes }) => isInside(holes, column, row)) };
      }
    }
    return null;
  }
}
