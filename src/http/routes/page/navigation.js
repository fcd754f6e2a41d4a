// Movement of the view: the point, the centre and the zoom, as gestures and keys change them.

import { normalOf } from "./volume.js";

export class Navigation {
  /** `preview` has the planes and their scale. `expand(isWanted)` of it fills the window. */
  constructor(preview) {
    const { state, volume, planes } = preview;
    // `direction` is that of the last `steps` steps, along the axis `stepped`.
    Object.assign(this, { preview, state, volume, planes, direction: 0, stepped: null, steps: 0, hasPanned: false });
  }

  /** Steps through the planes. The length of a step is that of an element of the level on screen. */
  stepThrough(plane, by) {
    const axis = normalOf(this.volume, plane.axes);
    if (axis === undefined) return;
    const shown = plane.fine.find(({ pictures }) => pictures);
    const step = Math.max(1, shown ? Math.round(this.volume.levels[shown.number].factors[axis]) : 1);
    this.preview.active = plane;
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
      const direction = Math.sign(position[axis] - state.position[axis]);
      this.steps = direction === this.direction && axis === this.stepped ? this.steps + 1 : 1;
      Object.assign(this, { direction, stepped: axis });
    }
    state.set({ position, centre: this.following(state.checked("position", position)) });
  }

  /** Returns the centre for a position: moved by as little as brings the position into sight. */
  following(position) {
    const pixelsPer = (axis) => this.preview.pixelsPer(axis);
    return this.state.centre.map((centre, axis) => {
      const planes = this.planes.filter((plane) => plane.isShown && plane.size && plane.axes.includes(axis));
      const spans = planes.map((plane) => plane.size[plane.axes.indexOf(axis)] / pixelsPer(axis));
      if (!spans.length) return centre;
      const half = Math.min(...spans) / 2;
      const edge = Math.min(half / 2, 8 / pixelsPer(axis));
      const at = position[axis] + 0.5;
      if (at < centre - half + edge) return at + half - edge;
      return at > centre + half - edge ? at - half + edge : centre;
    });
  }

  pick(plane, point) {
    if (!plane.view?.contains(point)) return;
    this.preview.active = plane;
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
    plane.axes.forEach((axis, n) => axis !== null && (centre[axis] -= [dx, dy][n] / this.preview.pixelsPer(axis)));
    this.preview.active = plane;
    this.hasPanned = true;
    this.state.set({ centre });
  }

  /** Zooms so that what is at a point of a plane stays there. */
  zoomAt(plane, factor, point) {
    const { state } = this;
    if (!plane.view) return;
    const zoom = state.checked("zoom", state.zoom * factor);
    const centre = [...state.centre];
    const under = plane.view.toElements(point);
    plane.axes.forEach((axis, n) => axis !== null && (centre[axis] = under[n] + (centre[axis] - under[n]) * (state.zoom / zoom)));
    state.set({ zoom, centre });
  }

  /** Zooms about the point, where that is in sight, otherwise about the middle. */
  zoomBy(factor) {
    const { active } = this.preview;
    const plane = active?.isShown ? active : this.planes.find(({ isShown }) => isShown);
    if (!plane?.view) return;
    const place = plane.view.toPixels(plane.axes.map((axis) => (axis === null ? 0.5 : this.state.position[axis] + 0.5)));
    const isVisible = place.every((at, n) => at >= 0 && at <= plane.size[n]);
    this.zoomAt(plane, factor, isVisible ? place : plane.size.map((size) => size / 2));
  }

  key(plane, event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const { preview } = this;
    const by = event.shiftKey ? 10 : 1;
    const moves = {
      ArrowLeft: [plane.axes[0], -by], ArrowRight: [plane.axes[0], by],
      ArrowUp: [plane.axes[1], -by], ArrowDown: [plane.axes[1], by],
    };
    const acts = {
      "+": () => this.zoomBy(2), "=": () => this.zoomBy(2), "-": () => this.zoomBy(0.5), 0: () => this.whole(),
      PageUp: () => this.stepThrough(plane, -by), ",": () => this.stepThrough(plane, -by),
      PageDown: () => this.stepThrough(plane, by), ".": () => this.stepThrough(plane, by),
      c: () => this.centre(), f: () => preview.expand(!preview.isExpanded),
    };
    if (event.key in moves) {
      const [axis, change] = moves[event.key];
      if (axis !== null) this.moveTo({ [axis]: this.state.position[axis] + change });
    } else if (Object.hasOwn(acts, event.key)) acts[event.key]();
    else if (event.key === "Escape" && !preview.isExpanded) plane.canvas.blur();
    else return;
    event.preventDefault();
  }
}
