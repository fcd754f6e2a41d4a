// The preview of a volume: orthogonal planes through one point, with their controls and a readout.

import { Display } from "./display.js";
import { h } from "./dom.js";
import { Navigation } from "./navigation.js";
import { arrangeAll, arrangeOne, heightOnPage } from "./plane_layout.js";
import { PlaneView } from "./plane_view.js";
import { AxisSlider, Tools, hintOf } from "./preview_controls.js";
import { damageText, emptyText, physicalText, placeTexts, scaleText } from "./readout.js";
import { FIRST_COST, TilePlan } from "./tile_plan.js";
import { TileStore } from "./tiles.js";
import { Viewport, cost, sampling, tilesOf } from "./viewport.js";
import { planesOf, spacing } from "./volume.js";

/** Width of the preview, in pixels, below which it shows one plane. */
const NARROW = 520;

/** Area of the corner, in square pixels, in which the hint fits. It is about eleven lines in a narrow corner. */
const HINT_AREA = 80000;

/** Largest number of bytes that the server decodes for a plane. */
const MOST_COST = 2 ** 31;

/** Largest number of positions whose tiles are fetched for `load`. */
const LOADS = 8;

export class Preview {
  /** `stats` resolves to the statistics. `begun` is called when the first plane is shown. */
  constructor(info, volume, state, stats, begun) {
    Object.assign(this, { volume, state, begun, hovered: null, isExpanded: false, loads: new Set() });
    this.spacing = spacing(volume);
    this.display = new Display(info, volume, state, stats);
    this.tiles = new TileStore((tile) => this.arrived(tile));
    this.plan = new TilePlan(volume, state, this.display, this.tiles);
    this.planes = planesOf(volume).map((axes, n) => new PlaneView(this, axes, n));
    this.active = this.planes[0];
    this.navigation = new Navigation(this);
    this.build();
    this.display.attach(this);
    this.listen();
  }

  build() {
    const { state, volume, planes, navigation } = this;
    this.tools = new Tools({ state, volume, planes, navigation, expand: () => this.expand(!this.isExpanded) });
    this.sliders = volume.axes.map((_, axis) =>
      new AxisSlider(this, axis, () => physicalText(volume, axis, state.position), (index) => navigation.moveTo({ [axis]: index })));
    this.readout = h("output", { class: "readout", "aria-live": "off" });
    this.scale = h("p", { class: "faint scale" });
    this.hint = h("p", { class: "hint" });
    this.corner = h("div", { class: "corner" }, this.readout, this.scale, this.hint);
    this.damage = h("p", { class: "damage", role: "status", hidden: true });
    this.grid = h("div", { class: "planes" }, planes.map(({ element }) => element), this.corner);
    this.element = h(
      "section", { class: "preview card", "aria-label": "Preview" },
      this.tools.element, this.grid, this.damage,
      h("div", { class: "controls" }, this.sliders.map(({ element }) => element), this.display.element),
    );
  }

  listen() {
    new ResizeObserver(() => this.layout()).observe(this.element);
    addEventListener("resize", () => this.isExpanded && this.layout(true));
    this.listenToDensity();
    // The hint is for the device that was used last.
    const isTouch = matchMedia("(pointer: coarse)").matches || (navigator.maxTouchPoints > 0 && !matchMedia("(hover: hover)").matches);
    const showHint = (isTouchUsed) => (this.hint.textContent = hintOf(isTouchUsed, this.planes.length > 1));
    showHint(isTouch);
    this.grid.addEventListener("pointerdown", ({ pointerType }) => showHint(pointerType === "touch"));
    this.state.subscribe((keys) => {
      // What failed because the server was busy or out of reach may succeed now.
      if (["position", "centre", "zoom", "level"].some((key) => keys.has(key))) this.tiles.forgive();
      if (keys.has("layout")) this.layout(true);
      else this.update();
    });
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.isExpanded) this.expand(false);
    });
  }

  /** Draws anew when the window has moved to a screen of another density. */
  listenToDensity() {
    matchMedia(`(resolution: ${devicePixelRatio}dppx)`).addEventListener("change", () => {
      this.update();
      this.listenToDensity();
    }, { once: true });
  }

  /** Number of device pixels per CSS pixel that pictures have. */
  get density() {
    return Math.min(devicePixelRatio || 1, 2);
  }

  /** Returns the number of pixels per element along an axis. */
  pixelsPer(axis) {
    return this.spacing[axis] * this.fit * this.state.zoom;
  }

  /** Lets the preview fill the window, or ends that. */
  expand(isWanted) {
    this.isExpanded = isWanted;
    this.element.classList.toggle("expanded", isWanted);
    document.documentElement.classList.toggle("covered", isWanted);
    this.tools.showExpanded(isWanted);
    this.layout(true);
  }

  // ---------------------------------------------------------------- layout

  /** Sizes the planes to fit the available room. */
  layout(again = false) {
    const width = this.grid.clientWidth;
    if (!width || (width === this.width && !again)) return;
    this.width = width;
    const { state, planes, isExpanded } = this;
    const layout = planes.length === 1 ? "0" : state.layout ?? (width < NARROW && !isExpanded ? "0" : "all");
    this.tools.showLayout(layout);
    const shown = planes.filter((plane) => layout === "all" || String(plane.number) === layout);
    for (const plane of planes) plane.element.hidden = !shown.includes(plane);
    const controls = isExpanded ? this.element.clientHeight - this.grid.clientHeight + 8 : 0;
    const height = isExpanded ? Math.max(220, innerHeight - controls) : heightOnPage();
    if (shown.length === 3) this.layoutAll(width, height);
    else this.layoutOne(shown[0], width, height);
    if (!shown.includes(this.active)) [this.active] = shown;
    this.startAffordably(shown[0]);
    this.update();
  }

  extent(axis) {
    return this.volume.dimensions[axis] * this.spacing[axis];
  }

  layoutAll(width, height) {
    const { planes, grid } = this;
    const { fit, sizes } = arrangeAll(planes.map(({ axes }) => axes), (axis) => this.extent(axis), width, height);
    this.fit = fit;
    planes.forEach((plane, n) => plane.resize(...sizes[n]));
    const [[left], [right], [, below]] = sizes;
    grid.style.gridTemplateColumns = `${left}px ${right}px`;
    grid.className = "planes planes-all";
    if (below * right > HINT_AREA) this.corner.append(this.hint);
    else grid.after(this.hint);
  }

  layoutOne(plane, width, height) {
    const { fit, size } = arrangeOne(plane.axes, (axis) => this.extent(axis), width, height, this.isExpanded);
    this.fit = fit;
    plane.resize(...size);
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
      const view = this.viewOf(plane, zoom);
      return cost(view, this.samplingOf(view));
    };
    while (price(state.home.zoom) > FIRST_COST && state.home.zoom < most) state.home.zoom = Math.min(most, state.home.zoom * 1.5);
    if (isHome) state.zoom = state.home.zoom;
  }

  viewOf(plane, zoom = this.state.zoom) {
    const scales = plane.axes.map((axis, n) => (axis === null ? plane.size[n] : this.spacing[axis] * this.fit * zoom));
    return new Viewport(this.volume, plane.axes, plane.size, this.state.centre, scales);
  }

  samplingOf(view) {
    return sampling(view, this.density, this.state.level);
  }

  // ---------------------------------------------------------------- tiles

  update() {
    if (!this.fit) return;
    const { volume, tiles } = this;
    for (const slider of this.sliders) slider.show();
    if (volume.channel >= 0) this.sliders[volume.channel].element.hidden = this.display.mixes;
    this.tools.show();
    const shown = this.planes.filter(({ isShown }) => isShown);
    const ordered = [this.active, ...shown.filter((plane) => plane !== this.active)];
    const wanted = [...ordered.flatMap((plane) => this.updatePlane(plane)), ...this.updateLoads(shown)];
    tiles.want(wanted.sort((a, b) => a.group - b.group));
    this.measure(shown);
    this.showDamage(shown);
    this.tell();
  }

  /** Shows a plane as far as its tiles have arrived. Returns the tiles to fetch for it. */
  updatePlane(plane) {
    const { plan, tiles, navigation } = this;
    const isFirst = plane === this.active;
    const view = this.viewOf(plane);
    const chosen = this.samplingOf(view);
    const price = cost(view, chosen);
    const isTooLarge = price > MOST_COST;
    const needed = isTooLarge ? [] : tilesOf(view, chosen);
    const specs = needed.map((tile) => plan.specOf(plane, tile, isFirst ? 1 : 3));
    const found = specs.map((spec) => tiles.find(spec.key) ?? spec);
    const isComplete = found.every((tile) => tile.pictures || tile.error);
    const isDamaged = found.some((tile) => tile.error || this.display.damageOf(tile.pictures).lost.length);
    const coarse = isComplete && !isDamaged ? [] : plan.coarserOf(plane, view, this.density, chosen, isDamaged);
    if (isFirst && isComplete) this.begun();
    plane.show(view, found, coarse.map((spec) => tiles.find(spec.key) ?? spec), isComplete);
    plane.explain(emptyText(found, isTooLarge && price));
    const wanted = [...coarse, ...specs];
    if (!isFirst || !isComplete || isTooLarge) return wanted;
    wanted.push(...plan.slabsOf(plane, needed, 2, navigation));
    if (navigation.hasPanned) wanted.push(...tilesOf(view, chosen, 160).map((tile) => plan.specOf(plane, tile, 5)));
    return wanted;
  }

  /** Resolves the loads whose tiles are there. Returns the tiles of the others. */
  updateLoads(planes) {
    const wanted = [];
    for (const load of this.loads) {
      const specs = planes.flatMap((plane) => {
        const view = this.viewOf(plane);
        return tilesOf(view, this.samplingOf(view)).map((tile) => this.plan.specOf(plane, tile, 4, { position: load.position }));
      });
      if (specs.every((spec) => spec.pictures || this.tiles.has(spec))) {
        this.loads.delete(load);
        load.resolve();
      } else wanted.push(...specs);
    }
    return wanted;
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
      // The oldest may be for a view that is no longer shown.
      const [oldest] = this.loads;
      if (this.loads.size > LOADS) {
        this.loads.delete(oldest);
        oldest.resolve();
      }
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

  showDamage(planes) {
    const isSaid = planes.length > 0 && planes.every(({ message }) => !message.hidden);
    const text = isSaid ? null : damageText(this.display, planes.flatMap(({ fine }) => fine));
    this.damage.hidden = text === null;
    if (text !== null && this.damage.textContent !== text) this.damage.textContent = text;
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
    this.readout.replaceChildren(...placeTexts(volume, this.display, position, sample));
    this.scale.textContent = scaleText(volume, shown, this.pixelsPer(shown.axes[0]));
  }

  /**
   * Returns the view for other programs: `items`, the visible part as [start, stop] per axis of the finest level, where
   * a null stop stands for a single index; `axes` that are visible; `position`; `zoom`; `elements` per pixel; the
   * `channels`, each with a window only if metadata give one or the user chose one; and the `limits` of the contrast of
   * an image with one channel, null while they are unknown.
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
    const [{ window }] = this.display.channels;
    const limits = channels.length === 1 && (window.chosen ?? window.given ?? window.distribution) ? window.value.map(Number) : null;
    return { items, axes, channels, limits, position: [...this.state.position], zoom: this.state.zoom, elements: this.fit ? 1 / this.pixelsPer(axes[0]) : null };
  }
}
