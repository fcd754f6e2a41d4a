// A box drawn on the planes: a rectangle on each of them, whose edges can be dragged.

import { h } from "./dom.js";

/** Distance in pixels within which a press takes hold of an edge. */
const REACH = { mouse: 8, touch: 20 };
/** Movement in pixels that makes a press a drag. */
const SLACK = 4;

const within = (at, low, high) => Math.min(high, Math.max(low, at));
const copied = (box) => box.map((range) => [...range]);

export class BoxDrawing {
  constructor(preview) {
    // `done` is null unless the reader is drawing.
    Object.assign(this, { preview, box: null, done: null, press: null, isPinch: false });
    this.text = h("output");
    this.use = h("button", { type: "button", class: "primary", text: "Use this box", on: { click: () => this.end(this.box) } });
    const cancel = h("button", { type: "button", class: "second", text: "Cancel", on: { click: () => this.end(null) } });
    this.bar = h("div", { class: "box-bar", role: "group", "aria-label": "Draw a box" }, this.text, this.use, cancel);
    preview.grid.before(this.bar);
    this.frames = preview.planes.map((plane) => {
      const frame = h("div", { class: "box-frame" }, [1, 2, 3, 4].map(() => h("i")));
      plane.element.append(frame);
      this.listen(plane);
      return frame;
    });
    document.addEventListener("keydown", (event) => {
      if (!this.done || event.key !== "Escape") return;
      event.stopPropagation();
      this.end(null);
    }, true);
    preview.drawing = this;
  }

  /** Lets the reader draw or, if `isDrawn`, change a box. Resolves to the box; null if the reader cancels. */
  start(box, isDrawn) {
    Object.assign(this, { box: copied(box), isDrawn });
    const result = new Promise((resolve) => (this.done = resolve));
    this.show();
    this.bar.scrollIntoView();
    this.preview.active.canvas.focus({ preventScroll: true });
    return result;
  }

  end(box) {
    const { done } = this;
    this.done = this.press = null;
    this.show();
    done(box);
  }

  show() {
    const { axes } = this.preview.volume;
    const ranges = this.box.map(([from, to], axis) => `${axes[axis]} ${to - from === 1 ? from : `${from}–${to}`}`);
    this.text.textContent = this.isDrawn ? ranges.join(", ") : "Drag on a plane to draw a box.";
    this.use.disabled = !this.isDrawn;
    this.bar.hidden = !this.done;
    this.preview.grid.classList.toggle("drawing", Boolean(this.done));
    for (const plane of this.preview.planes) this.place(plane);
  }

  /** Places the rectangle of a plane. The plane calls this when its view has changed. */
  place(plane) {
    const frame = this.frames[plane.number];
    frame.hidden = !this.done || !this.isDrawn || !plane.isShown || !plane.view;
    if (frame.hidden) return;
    const [low, high] = this.corners(plane);
    [frame.style.left, frame.style.top] = low.map((at) => `${at}px`);
    [frame.style.width, frame.style.height] = high.map((at, n) => `${Math.max(2, at - low[n])}px`);
  }

  /** Returns two opposite corners in pixels. */
  corners({ axes, view }) {
    return [0, 1].map((end) => view.toPixels(axes.map((axis) => (axis === null ? end : this.box[axis][end]))));
  }

  /** Returns the edges at a point, -1 for start and 1 for stop along each axis of the plane; null if there is none. */
  edgesAt(plane, point, reach) {
    if (!this.isDrawn) return null;
    const [low, high] = this.corners(plane);
    if (point.some((at, n) => at < low[n] - reach || at > high[n] + reach)) return null;
    const found = point.map((at, n) => {
      const [before, after] = [low[n], high[n]].map((edge) => Math.abs(at - edge));
      if (plane.axes[n] === null || Math.min(before, after) > reach) return 0;
      return before < after ? -1 : 1;
    });
    return found.some(Boolean) ? found : null;
  }

  drag({ from, edges }, { axes, view }, point) {
    const to = view.toElements(point);
    axes.forEach((axis, n) => {
      if (axis === null) return;
      const count = view.length(n);
      let [start, stop] = this.box[axis];
      if (!edges) {
        start = within(Math.floor(Math.min(from[n], to[n])), 0, count - 1);
        stop = within(Math.ceil(Math.max(from[n], to[n])), start + 1, count);
      } else if (edges[n] < 0) start = within(Math.round(to[n]), 0, stop - 1);
      else if (edges[n] > 0) stop = within(Math.round(to[n]), start + 1, count);
      this.box[axis] = [start, stop];
    });
    this.isDrawn = true;
    this.show();
  }

  /** Takes presses on a plane before its own gestures do. The wheel and two fingers still move the picture. */
  listen(plane) {
    const { element, canvas } = plane;
    const pointOf = ({ clientX, clientY }) => {
      const { left, top } = canvas.getBoundingClientRect();
      return [clientX - left, clientY - top];
    };
    const on = (names, act) => names.split(" ").forEach((name) => {
      element.addEventListener(name, (event) => this.done && plane.view && act(event), { capture: true, passive: false });
    });
    on("pointerdown", (event) => {
      if (event.button !== 0) return;
      event.stopPropagation();
      if (!event.isPrimary) {
        // With a second finger, the first one did not mean to draw.
        Object.assign(this, this.press?.before, { press: null });
        this.show();
        return;
      }
      canvas.focus({ preventScroll: true });
      element.setPointerCapture(event.pointerId);
      const at = pointOf(event);
      const edges = this.edgesAt(plane, at, REACH[event.pointerType] ?? REACH.mouse);
      this.press = { at, edges, from: plane.view.toElements(at), before: { box: copied(this.box), isDrawn: this.isDrawn } };
    });
    on("pointermove", (event) => {
      if (!this.press) return;
      event.stopPropagation();
      const point = pointOf(event);
      this.press.isDrag ||= Math.hypot(...point.map((at, n) => at - this.press.at[n])) > SLACK;
      if (this.press.isDrag) this.drag(this.press, plane, point);
    });
    on("pointerup pointercancel", (event) => {
      if (!this.press) return;
      event.stopPropagation();
      if (!this.press.isDrag && event.type === "pointerup") this.preview.navigation.pick(plane, pointOf(event));
      this.press = null;
    });
    on("touchstart touchmove touchend touchcancel", (event) => {
      this.isPinch ||= event.touches.length > 1;
      if (!this.isPinch) {
        event.stopPropagation();
        if (event.cancelable) event.preventDefault();
      }
      if (event.touches.length === 0) this.isPinch = false;
    });
  }
}
