// The preview of a volume: orthogonal planes through one point, their controls, and what is under the pointer.

import { length, number, unit, bytes } from "./describe.js";
import { Display } from "./display.js";
import { choice, copyButton, h } from "./dom.js";
import { PlaneView } from "./plane_view.js";
import { partOf } from "./planes.js";
import { TileStore } from "./tiles.js";
import { Viewport, cost, sampling, tilesOf } from "./viewport.js";
import { indexAt, planesOf, shownAxes, spacing } from "./volume.js";

const GAP = 6;
/** Width of the preview, in pixels, below which it shows one plane. */
const NARROW = 520;
/** Width of the free corner, in pixels, in which the readout fits. */
const CORNER = 200;

/** Largest number of bytes that the server decodes for a plane: at all, and when the page opens. */
const MOST_COST = 2 ** 31;
const FIRST_COST = 3 * 2 ** 28;

/** Size of the planes that are fetched in advance, and their number. */
const SLAB_BYTES = 4 << 20;
const SLAB = 8;

export class Preview {
  /** `stats` resolves to the statistics. `begun` is called when the first plane is shown. */
  constructor(info, volume, state, stats, begun) {
    Object.assign(this, { volume, state, begun, hovered: null, direction: 0, isExpanded: false, loads: new Set() });
    this.spacing = spacing(volume);
    this.display = new Display(info, volume, state, stats);
    this.tiles = new TileStore((tile) => this.arrived(tile));
    this.planes = planesOf(volume).map((axes, n) => new PlaneView(this, axes, n));
    this.active = this.planes[0];
    this.sliders = volume.axes.map((_, axis) => this.makeSlider(axis));
    this.readout = h("output", { class: "readout", "aria-live": "off" });
    this.scale = h("p", { class: "faint scale" });
    this.hint = h("p", { class: "hint" });
    this.corner = h("div", { class: "corner" }, this.readout, this.scale, this.hint);
    this.damage = h("p", { class: "damage", role: "status", hidden: true });
    this.grid = h("div", { class: "planes" }, this.planes.map(({ element }) => element), this.corner);
    this.element = h(
      "section",
      { class: "preview card", "aria-label": "Preview" },
      this.makeTools(),
      this.grid,
      this.damage,
      h("div", { class: "controls" }, this.sliders.map((slider) => slider.element), this.display.element),
    );
    this.display.attach(this);
    new ResizeObserver(() => this.layout()).observe(this.element);
    addEventListener("resize", () => this.isExpanded && this.layout(true));
    // The hint is for the device that was used last.
    this.isTouch = matchMedia("(pointer: coarse)").matches || (navigator.maxTouchPoints > 0 && !matchMedia("(hover: hover)").matches);
    this.showHint();
    this.grid.addEventListener("pointerdown", ({ pointerType }) => {
      this.isTouch = pointerType === "touch";
      this.showHint();
    });
    state.subscribe((keys) => {
      // What failed because the server was busy or out of reach may succeed now.
      if (["position", "centre", "zoom", "level"].some((key) => keys.has(key))) this.tiles.forgive();
      if (keys.has("layout")) this.layout(true);
      else this.update();
    });
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.isExpanded) this.expand(false);
    });
  }

  get density() {
    return Math.min(devicePixelRatio || 1, 2);
  }

  // ---------------------------------------------------------------- controls

  makeTools() {
    const { state, volume } = this;
    const button = (label, text, act) => h("button", { type: "button", class: "quiet", "aria-label": label, title: label, text, on: { click: act } });
    this.zoomed = h("output", { class: "numbers", text: "1×" });
    const zoom = h(
      "div", { class: "zoom", role: "group", "aria-label": "Zoom" },
      button("Zoom out", "−", () => this.zoomBy(0.5)), this.zoomed, button("Zoom in", "+", () => this.zoomBy(2)),
      button("Show the whole volume", "Whole", () => this.whole()),
    );
    const names = this.planes.map((plane) => [String(plane.number), plane.label]);
    this.layouts = this.planes.length > 1 && choice("layout", "Planes to show", [["all", "All"], ...names], "all", (layout) => state.set({ layout }));
    const levels = volume.levels.map((level, n) => h("option", { value: n, text: `${level.path.split("/").pop()}: ${level.dimensions.join(" × ")}` }));
    this.levels = levels.length > 1 && h(
      "select", { class: "quiet", "aria-label": "Level", on: { change: () => state.set({ level: this.levels.value === "" ? null : Number(this.levels.value) }) } },
      h("option", { value: "", text: "Level: auto" }), levels,
    );
    this.expander = button("Fill the window", "Expand", () => this.expand(!this.isExpanded));
    // The token in an address lets everyone who has it read the data.
    const secret = new URLSearchParams(location.search).has("token") ? "Copy link (contains your token)" : "Copy link";
    return h(
      "div", { class: "tools" }, this.layouts, zoom, this.levels,
      h("span", { class: "end" }, this.expander, copyButton("Copy a link to this view", () => state.link(), secret)),
    );
  }

  makeSlider(axis) {
    const { axes, dimensions } = this.volume;
    const last = Math.max(0, dimensions[axis] - 1);
    const { state } = this;
    const range = h("input", {
      type: "range", min: 0, max: last, step: 1, value: state.position[axis], "aria-label": `Position along ${axes[axis]}`,
      disabled: last === 0,
      on: { input: () => this.moveTo({ [axis]: Number(range.value) }) },
    });
    const box = h("input", {
      type: "number", min: 0, max: last, step: 1, value: state.position[axis], "aria-label": `Index along ${axes[axis]}`,
      disabled: last === 0,
      on: { change: () => box.value !== "" && this.moveTo({ [axis]: Number(box.value) }) },
    });
    const physical = h("span", { class: "physical" });
    const element = h("div", { class: "slider" }, h("span", { class: "label", text: axes[axis] }), range, box, physical);
    const show = () => {
      const at = state.position[axis];
      if (Number(range.value) !== at) range.value = at;
      if (Number(box.value) !== at || box.value === "") box.value = at;
      physical.textContent = this.physical(axis);
      range.setAttribute("aria-valuetext", `${at} of ${last}${this.physical(axis) && `, ${this.physical(axis)}`}`);
    };
    return { element, show };
  }

  /** Formats the position along an axis with its unit; empty if the size of voxels or its unit is unknown. */
  physical(axis, position = this.state.position) {
    const { units, voxelSize } = this.volume;
    return units[axis] && voxelSize[axis] !== null ? `${number(position[axis] * voxelSize[axis])} ${unit(units[axis])}` : "";
  }

  /** Returns the size of an element along an axis for the scale bar, and a function that formats a length. */
  ruler(axis) {
    const { units, voxelSize } = this.volume;
    if (units[axis] && voxelSize[axis] !== null) return { unit: voxelSize[axis], text: (size) => length(size, units[axis]) };
    return { unit: 1, text: (size) => `${number(size)} ${size === 1 ? "voxel" : "voxels"}` };
  }

  showHint() {
    const several = this.planes.length > 1;
    const touch = [
      "Two fingers move and zoom the picture.", several ? "A tap moves the other planes." : "A tap shows the value.",
      "A double tap centres.",
    ];
    const mouse = [
      "Drag to move, Ctrl and the wheel to zoom; after a click, the wheel alone.",
      several ? "A click moves the other planes. Shift and the wheel, or Page Up and Down, step through." : "A click shows the value.",
      "A double click centres.", "Keys: arrows move the point, + − zoom, 0 shows the whole, C centres, F fills the window.",
    ];
    this.hint.textContent = (this.isTouch ? touch : mouse).join(" ");
  }

  passedText(kind) {
    return kind === "touch" ? "Use two fingers to move the picture" : "Click, or hold Ctrl, to zoom with the wheel";
  }

  // ---------------------------------------------------------------- movement

  /** Returns the axis perpendicular to a plane, or else the first axis that no plane shows and that has several elements. */
  normal(plane) {
    const shown = shownAxes(this.volume);
    const across = shown.find((axis) => !plane.axes.includes(axis));
    const others = [...this.volume.axes.keys()].filter((axis) => !shown.includes(axis) && this.volume.dimensions[axis] > 1);
    return across ?? others.find((axis) => axis !== this.volume.channel) ?? others[0];
  }

  stepThrough(plane, by) {
    const axis = this.normal(plane);
    if (axis === undefined) return;
    const shown = plane.fine.find(({ pictures }) => pictures);
    const step = Math.max(1, shown ? Math.round(this.volume.levels[shown.number].factors[axis]) : 1);
    this.active = plane;
    this.moveTo({ [axis]: this.state.position[axis] + by * step });
  }

  /** Moves the point along some axes. The planes follow so far that the point stays in sight. */
  moveTo(changes) {
    const { state } = this;
    const position = [...state.position];
    for (const [axis, value] of Object.entries(changes)) {
      if (Number.isFinite(value)) position[axis] = value;
    }
    const [axis] = Object.keys(changes).map(Number);
    if (axis !== undefined && position[axis] !== state.position[axis]) {
      this.direction = Math.sign(position[axis] - state.position[axis]);
      this.stepped = axis;
    }
    state.set({ position, centre: this.following(state.checked("position", position)) });
  }

  /** Returns the centre for a position: moved by as little as brings the position into sight. */
  following(position) {
    return this.state.centre.map((centre, axis) => {
      const planes = this.planes.filter((plane) => plane.isShown && plane.size && plane.axes.includes(axis));
      const spans = planes.map((plane) => plane.size[plane.axes.indexOf(axis)] / this.pixelsPer(axis));
      if (!spans.length) return centre;
      const half = Math.min(...spans) / 2;
      const edge = Math.min(half / 2, 8 / this.pixelsPer(axis));
      const at = position[axis] + 0.5;
      if (at < centre - half + edge) return at + half - edge;
      return at > centre + half - edge ? at - half + edge : centre;
    });
  }

  pick(plane, point) {
    if (!plane.view?.contains(point)) return;
    this.active = plane;
    const elements = plane.view.elementAt(point);
    const position = [...this.state.position];
    plane.axes.forEach((axis, n) => axis !== null && (position[axis] = elements[n]));
    this.state.set({ position });
  }

  centreAt(plane, point) {
    this.pick(plane, point);
    this.centre();
  }

  centre() {
    this.state.set({ centre: this.state.position.map((at) => at + 0.5) });
  }

  whole() {
    const { home } = this.state;
    this.state.set({ zoom: home.zoom, centre: home.centre });
  }

  pan(plane, dx, dy) {
    const centre = [...this.state.centre];
    plane.axes.forEach((axis, n) => axis !== null && (centre[axis] -= [dx, dy][n] / this.pixelsPer(axis)));
    this.active = plane;
    this.hasPanned = true;
    this.state.set({ centre });
  }

  /** Zooms so that what is at a point of a plane stays there. */
  zoomAt(plane, factor, point) {
    const { state } = this;
    const zoom = state.checked("zoom", state.zoom * factor);
    const centre = [...state.centre];
    const under = plane.view.toElements(point);
    plane.axes.forEach((axis, n) => axis !== null && (centre[axis] = under[n] + (centre[axis] - under[n]) * (state.zoom / zoom)));
    state.set({ zoom, centre });
  }

  /** Zooms about the point, where that is in sight, otherwise about the middle. */
  zoomBy(factor) {
    const plane = this.active?.isShown ? this.active : this.planes.find(({ isShown }) => isShown);
    if (!plane?.view) return;
    const place = plane.view.toPixels(plane.axes.map((axis) => (axis === null ? 0.5 : this.state.position[axis] + 0.5)));
    const isVisible = place.every((at, n) => at >= 0 && at <= plane.size[n]);
    this.zoomAt(plane, factor, isVisible ? place : plane.size.map((size) => size / 2));
  }

  key(plane, event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const by = event.shiftKey ? 10 : 1;
    const moves = {
      ArrowLeft: [plane.axes[0], -by], ArrowRight: [plane.axes[0], by],
      ArrowUp: [plane.axes[1], -by], ArrowDown: [plane.axes[1], by],
    };
    const acts = {
      "+": () => this.zoomBy(2), "=": () => this.zoomBy(2), "-": () => this.zoomBy(0.5), 0: () => this.whole(),
      PageUp: () => this.stepThrough(plane, -by), ",": () => this.stepThrough(plane, -by),
      PageDown: () => this.stepThrough(plane, by), ".": () => this.stepThrough(plane, by),
      c: () => this.centre(), f: () => this.expand(!this.isExpanded),
    };
    if (event.key in moves) {
      const [axis, change] = moves[event.key];
      if (axis !== null) this.moveTo({ [axis]: this.state.position[axis] + change });
    } else if (Object.hasOwn(acts, event.key)) acts[event.key]();
    else if (event.key === "Escape" && !this.isExpanded) plane.canvas.blur();
    else return;
    event.preventDefault();
  }

  /** Lets the preview fill the window, or ends that. */
  expand(wanted) {
    this.isExpanded = wanted;
    this.element.classList.toggle("expanded", wanted);
    document.documentElement.classList.toggle("covered", wanted);
    this.expander.textContent = wanted ? "Close" : "Expand";
    this.expander.setAttribute("aria-pressed", wanted);
    this.layout(true);
  }

  // ---------------------------------------------------------------- display

  /** Returns the number of pixels per element along an axis. */
  pixelsPer(axis) {
    return this.spacing[axis] * this.fit * this.state.zoom;
  }

  /** Sizes the planes to fit the available room. */
  layout(again = false) {
    const width = this.grid.clientWidth;
    if (!width || (width === this.width && !again)) return;
    this.width = width;
    const { state, planes } = this;
    const layout = planes.length === 1 ? "0" : state.layout ?? (width < NARROW && !this.isExpanded ? "0" : "all");
    const input = this.layouts && this.layouts.querySelector(`input[value="${layout}"]`);
    if (input) input.checked = true;
    const shown = planes.filter((plane) => layout === "all" || String(plane.number) === layout);
    for (const plane of planes) plane.element.hidden = !shown.includes(plane);
    const extent = (axis) => (axis === null || axis === undefined ? 0 : this.volume.dimensions[axis] * this.spacing[axis]);
    const controls = this.isExpanded ? this.element.clientHeight - this.grid.clientHeight + 8 : 0;
    const height = this.isExpanded ? Math.max(220, innerHeight - controls) : Math.max(320, Math.min(innerHeight * 0.8, 900));
    if (layout === "all") this.layoutAll(width, height, extent);
    else this.layoutOne(shown[0], width, height, extent);
    if (!shown.includes(this.active)) [this.active] = shown;
    this.startAffordably(shown[0]);
    this.update();
  }

  /** The plane x y at the top left, z y beside it and x z below it, all at the same scale and aligned. */
  layoutAll(width, height, extent) {
    const [[x, y], [z]] = this.planes.map(({ axes }) => axes);
    const room = width - GAP;
    const share = (long, short, least) => Math.min(Math.max(extent(short) / (extent(long) + extent(short)), least), 0.6);
    const beside = Math.round(room * share(x, z, Math.min(0.45, CORNER / room)));
    const columns = [room - beside, beside];
    const below = share(y, z, 0.22);
    // The height that the volume takes at the scale that its width allows, but not more than there is.
    const wide = Math.min(columns[0] / extent(x), columns[1] / extent(z));
    const tall = Math.min(height - GAP, Math.max(320, wide * extent(y) / (1 - below)));
    const rows = [Math.round(tall * (1 - below)), Math.round(tall * below)];
    this.fit = Math.min(wide, rows[0] / extent(y), rows[1] / extent(z));
    this.planes[0].resize(columns[0], rows[0]);
    this.planes[1].resize(columns[1], rows[0]);
    this.planes[2].resize(columns[0], rows[1]);
    this.grid.style.gridTemplateColumns = `${columns[0]}px ${columns[1]}px`;
    this.grid.className = "planes planes-all";
    // The hint is a long text, about eleven lines in a narrow corner.
    if (rows[1] * columns[1] > 80000) this.corner.append(this.hint);
    else this.grid.after(this.hint);
  }

  layoutOne(plane, width, height, extent) {
    const [x, y] = plane.axes;
    const tall = y === null ? 48 : Math.min(height, Math.max(200, (width * extent(y)) / extent(x)));
    this.fit = Math.min(width / extent(x), y === null ? Infinity : tall / extent(y));
    plane.resize(width, Math.round(this.isExpanded && y !== null ? height : tall));
    if (this.isExpanded && y !== null) this.fit = Math.min(width / extent(x), height / extent(y));
    this.grid.style.gridTemplateColumns = "";
    this.grid.className = "planes planes-one";
    this.corner.append(this.hint);
  }

  /** Lets the page open with a part of a volume that is too large to show whole, once. */
  startAffordably(plane) {
    if (this.hasStarted) return;
    this.hasStarted = true;
    const { state } = this;
    const isHome = state.zoom === state.home.zoom;
    const most = state.mostZoom();
    const price = (zoom) => {
      const view = new Viewport(this.volume, plane.axes, plane.size, state.centre, this.scalesOf(plane, zoom));
      return cost(view, sampling(view, this.density, state.level));
    };
    while (price(state.home.zoom) > FIRST_COST && state.home.zoom < most) state.home.zoom = Math.min(most, state.home.zoom * 1.5);
    if (isHome) state.zoom = state.home.zoom;
  }

  scalesOf(plane, zoom = this.state.zoom) {
    return plane.axes.map((axis, n) => (axis === null ? plane.size[n] : this.spacing[axis] * this.fit * zoom));
  }

  /**
   * Returns the description of a tile of a plane at a position. `index` overrides the position along the plane's normal,
   * in elements of the level; `count` is the number of planes.
   */
  specOf(plane, tile, group, { position = this.state.position, index = null, count = 1 } = {}) {
    const { volume } = this;
    const level = volume.levels[tile.number];
    const start = volume.axes.map((_, axis) => indexAt(level, axis, position));
    const normal = this.normal(plane);
    if (index !== null) start[normal] = index;
    const stop = start.map((at, axis) => at + (index !== null && axis === normal ? count : 1));
    const step = start.map(() => 1);
    plane.axes.forEach((axis, n) => {
      if (axis !== null) [start[axis], stop[axis], step[axis]] = [tile.start[n], tile.stop[n], tile.step[n]];
    });
    const parts = this.display.parts(level, position).map(({ path, channels, make, optional }) => {
      const box = { start: [...start], stop: [...stop], step };
      if (channels) [box.start[volume.channel], box.stop[volume.channel]] = channels;
      const channel = channels ? volume.channel : null;
      const part = make ? make(box, plane.axes) : partOf({ path, level, dataType: volume.dataType, box, axes: plane.axes, channel });
      return part && { ...part, isOptional: optional };
    });
    const spec = { ...tile, plane, parts, group, normal, key: parts.map((part) => part?.key ?? "").join(" ") };
    // A stack may have nothing at a place: the tile is empty.
    return parts.every((part) => part === null) ? { ...spec, key: `${plane.number} ${tile.number} ${start}/${stop}`, pictures: [] } : spec;
  }

  /** Returns the tiles of the coming planes: slabs, each within a layer of blocks, which the server has just decoded. */
  slabsOf(plane, tiles, group) {
    const normal = this.normal(plane);
    if (normal === undefined || !tiles.length || navigator.connection?.saveData) return [];
    const level = this.volume.levels[tiles[0].number];
    const depth = level.info.block_size?.[normal] ?? 1;
    const last = level.dimensions[normal];
    const at = indexAt(level, normal, this.state.position);
    const parts = tiles.flatMap((tile) => this.specOf(plane, tile, group).parts);
    if (parts.some((part) => !part || part.of || normal >= part.shape.length)) return [];
    const size = parts.reduce((sum, { shape }) => sum + shape.reduce((a, b) => a * b, this.volume.itemBytes), 0);
    const isStepping = this.stepped === normal;
    // Someone who only looks gets a quarter.
    const most = Math.min(SLAB, Math.floor(SLAB_BYTES / (isStepping ? 1 : 4) / size));
    const forward = this.direction >= 0 || !isStepping;
    const isHere = (index) => tiles.every((tile) => this.tiles.find(this.specOf(plane, tile, group, { index }).key));
    let next = at + (forward ? 1 : -1);
    while (Math.abs(next - at) <= most / 2 && next >= 0 && next < last && isHere(next)) next += forward ? 1 : -1;
    const isFar = Math.abs(next - at) > most / 2 || next < 0 || next >= last;
    // Blocks of another layer are decoded in advance only for someone who is on the way to them.
    if (most < 1 || isFar || (!isStepping && Math.floor(next / depth) !== Math.floor(at / depth))) return [];
    const layer = Math.floor(next / depth) * depth;
    const count = isStepping ? most : Math.min(most, SLAB / 2);
    const from = forward ? next : Math.max(layer, next - count + 1);
    const to = forward ? Math.min(next + count, layer + depth, last) : next + 1;
    return tiles.map((tile) => ({
      ...this.specOf(plane, tile, group, { index: from, count: to - from }),
      keys: Array.from({ length: to - from }, (_, n) => this.specOf(plane, tile, group, { index: from + n }).key),
    }));
  }

  update() {
    if (!this.fit) return;
    const { state, volume, tiles } = this;
    for (const slider of this.sliders) slider.show();
    if (volume.channel >= 0) this.sliders[volume.channel].element.hidden = this.display.mixes;
    this.zoomed.textContent = `${Number(state.zoom.toPrecision(state.zoom < 10 ? 2 : 3))}×`;
    if (this.levels) this.levels.value = state.level ?? "";
    const shown = this.planes.filter(({ isShown }) => isShown);
    const ordered = [this.active, ...shown.filter((plane) => plane !== this.active)];
    const wanted = [];
    for (const plane of ordered) {
      const isFirst = plane === this.active;
      const view = new Viewport(volume, plane.axes, plane.size, state.centre, this.scalesOf(plane));
      const chosen = sampling(view, this.density, state.level);
      const isTooLarge = cost(view, chosen) > MOST_COST;
      const specs = isTooLarge ? [] : tilesOf(view, chosen).map((tile) => this.specOf(plane, tile, isFirst ? 1 : 3));
      const found = specs.map((spec) => tiles.find(spec.key) ?? spec);
      const isComplete = found.every((tile) => tile.pictures || tile.error);
      const isDamaged = found.some((tile) => tile.error || tile.pictures?.some((picture) => picture?.damaged.length));
      const coarse = this.coarserOf(plane, view, chosen, isComplete && !isDamaged, isDamaged);
      if (isFirst && isComplete) this.begun();
      plane.show(view, found, coarse.map((spec) => tiles.find(spec.key) ?? spec), isComplete);
      this.showMessage(plane, found, isTooLarge && cost(view, chosen));
      wanted.push(...coarse, ...specs);
      if (!isFirst || !isComplete || isTooLarge) continue;
      wanted.push(...this.slabsOf(plane, tilesOf(view, chosen), 2));
      if (this.hasPanned) wanted.push(...tilesOf(view, chosen, 160).map((tile) => this.specOf(plane, tile, 5)));
    }
    for (const load of [...this.loads]) {
      const specs = shown.flatMap((plane) => {
        const view = new Viewport(volume, plane.axes, plane.size, state.centre, this.scalesOf(plane));
        return tilesOf(view, sampling(view, this.density, state.level)).map((tile) => this.specOf(plane, tile, 4, { position: load.position }));
      });
      if (specs.every((spec) => tiles.has(spec))) {
        this.loads.delete(load);
        load.resolve();
      } else wanted.push(...specs);
    }
    tiles.want(wanted.sort((a, b) => a.group - b.group));
    this.measure(shown);
    this.showDamage(shown);
    this.tell();
  }

  /** Returns tiles of coarser levels, to show until those of the chosen one have arrived, and in place of damaged ones. */
  coarserOf(plane, view, chosen, isNeedless, isDamaged) {
    const { levels } = this.volume;
    const last = levels.length - 1;
    if (isNeedless || chosen.number >= last) return [];
    const numbers = new Set([last]);
    if (isDamaged) numbers.add(chosen.number + 1);
    const options = [...numbers].sort((a, b) => b - a).map((number) => sampling(view, this.density, number));
    return options.flatMap((option) => (cost(view, option) > FIRST_COST ? [] : tilesOf(view, option).map((tile) => this.specOf(plane, tile, 0))));
  }

  arrived(tile) {
    const { plane } = tile;
    const isWanted = plane.fine.some(({ key }) => key === tile.key) || plane.coarse.some(({ key }) => key === tile.key);
    if (tile.pictures && !isWanted && !this.loads.size) plane.pass(tile);
    this.schedule();
  }

  /** Shows the display what is on screen: as soon as there is something, and when all of it is there. */
  measure(planes) {
    const tiles = planes.flatMap(({ fine }) => fine).filter(({ pictures }) => pictures);
    const isAll = planes.every(({ isComplete }) => isComplete);
    const seen = tiles.map(({ key }) => key).join();
    if (tiles.length === 0 || this.seen === seen || (this.seen && !isAll)) return;
    this.seen = seen;
    this.display.measure(tiles.map(({ pictures }) => pictures));
  }

  /** Fetches the planes of another position. Resolves when they have arrived. */
  load(position) {
    return new Promise((resolve) => {
      this.loads.add({ position, resolve });
      // Those that never arrived, because of a change of the view, are not waited for.
      if (this.loads.size > 8) this.loads.delete([...this.loads][0]);
      this.schedule();
    });
  }

  /** Updates once for all tiles that arrive together. */
  schedule() {
    this.pending ??= setTimeout(() => {
      this.pending = null;
      this.update();
    }, 0);
  }

  // ---------------------------------------------------------------- texts

  showMessage(plane, tiles, price) {
    const failed = tiles.find(({ error }) => error);
    const isShown = Boolean(price) || (failed && tiles.every(({ error }) => error) && !failed.error.document?.block);
    plane.message.hidden = !isShown;
    if (!isShown) return;
    const why = { 413: "This plane is too large to decode. ", 501: "The server cannot decode this volume. " };
    plane.message.textContent = price
      ? `Zoom in to see this plane: at this scale the server would decode ${bytes(price)}, because there is no coarser level.`
      : `${why[failed.error.status] ?? ""}${failed.error.message}`;
  }

  /** Says which block is damaged and why. */
  showDamage(planes) {
    const found = new Map();
    let isUnread = false;
    for (const plane of planes) {
      for (const tile of plane.fine) {
        if (tile.error && !tile.pictures) found.set(tile.error.message, { text: tile.error.message });
        for (const part of (tile.pictures ?? []).filter(Boolean)) {
          for (const { error, isUnread: more } of part.damaged) {
            const { block } = error.document ?? {};
            isUnread ||= more;
            if (block) found.set(`${part.path}/${block.join("/")}`, { part, block, error });
            else found.set(error.message, { text: error.message });
          }
        }
      }
    }
    const [first] = found.values();
    const isSaid = planes.length > 0 && planes.every(({ message }) => !message.hidden);
    this.damage.hidden = !first || isSaid;
    if (!first) return;
    const more = found.size - 1;
    const others = [
      more > 0 && ` ${more} more ${more === 1 ? "block is" : "blocks are"} damaged in this view.`,
      isUnread && " There are so many that parts of the view were not read.",
    ].filter(Boolean).join("");
    if (first.text) this.damage.textContent = first.text + others;
    else {
      const { part, block, error } = first;
      const path = `${part.path}/${block.join("/")}`;
      const reason = error.message.replace(/^block \S+: /, "").replace(/\.$/, "");
      this.damage.textContent = `Block ${block.join(", ")} (${path}) is damaged: ${reason}.${others}`;
    }
  }

  hover(plane, point) {
    this.hovered = point && plane.view?.contains(point) ? { plane, point } : null;
    this.tell();
  }

  /** Shows position and values under the pointer, or of the point. */
  tell() {
    const { state, volume } = this;
    const shown = this.planes.find(({ isShown, view }) => isShown && view);
    if (!shown) return;
    const plane = this.hovered?.plane ?? (this.active?.view ? this.active : shown);
    const position = [...state.position];
    if (this.hovered) {
      plane.view.elementAt(this.hovered.point).forEach((at, n) => plane.axes[n] !== null && (position[plane.axes[n]] = at));
    }
    const sample = plane.sampleAt(plane.axes.map((axis) => (axis === null ? 0 : position[axis])));
    const places = volume.axes.map((name, axis) => {
      if (axis === volume.channel && this.display.mixes) return "";
      const physical = this.physical(axis, position);
      return h("span", {}, h("b", { text: name }), ` ${position[axis]}`, physical && h("span", { class: "faint", text: ` (${physical})` }));
    });
    this.readout.replaceChildren(...places, h("span", { class: "value" }, h("b", { text: "value" }), " ", ...this.valueOf(sample)));
    this.tellScale(shown);
  }

  valueOf(sample) {
    if (!sample) return [h("span", { class: "faint", text: "…" })];
    if (sample.isDamaged) return ["in a damaged block"];
    const values = this.display.values(sample.tile.pictures, sample.column, sample.row);
    const texts = values.map(({ text, label, colour }, n) => {
      const mark = colour && h("span", { class: "swatch" });
      if (mark) mark.style.background = colour;
      return h("span", {}, n > 0 && ", ", mark, label && `${label} `, text);
    });
    return sample.isHole ? [...texts, h("span", { class: "faint", text: " (never written)" })] : texts;
  }

  tellScale(plane) {
    const { volume } = this;
    const tile = plane.fine.find(({ pictures }) => pictures);
    const [axis] = plane.axes;
    const pixels = this.pixelsPer(axis);
    const texts = [];
    if (volume.levels.length > 1 && tile) texts.push(`level ${tile.number + 1} of ${volume.levels.length}`);
    texts.push(pixels >= 1 ? `1 voxel = ${number(Number(pixels.toPrecision(3)))} px` : `1 px = ${number(Number((1 / pixels).toPrecision(3)))} voxels`);
    if (tile && Math.max(...tile.step) > 1) texts.push(`every ${Math.max(...tile.step)}th element`);
    this.scale.textContent = texts.join(" · ");
  }

  /**
   * Returns the view for other programs: `items`, the visible part as [start, stop] per axis of the finest level, where
   * a null stop stands for a single index; `axes` that are visible; `position`; `zoom`; `elements` per pixel; and the
   * `channels`, each with a window only if metadata give one or the user chose one.
   */
  viewForOthers() {
    const plane = this.planes.find(({ isShown }) => isShown);
    const ranges = plane?.view?.visible();
    const items = this.state.position.map((at) => [at, null]);
    plane?.axes.forEach((axis, n) => {
      if (axis === null) return;
      const [from, to] = ranges?.[n] ?? [0, this.volume.dimensions[axis]];
      items[axis] = [Math.floor(from), Math.max(Math.floor(from) + 1, Math.ceil(to))];
    });
    const axes = (plane?.axes ?? []).filter((axis) => axis !== null);
    const channels = this.display.channels.map(({ index, name, colour, visible, window }) =>
      ({ index, name, colour, visible, window: (window.chosen ?? window.given)?.map(Number) ?? null }));
    return { items, axes, channels, position: [...this.state.position], zoom: this.state.zoom, elements: this.fit ? 1 / this.pixelsPer(axes[0]) : null };
  }
}
