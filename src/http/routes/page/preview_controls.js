// The controls of the preview: its tools, the sliders of the axes, and the hint.

import { copyButton, choice, h } from "./dom.js";
import { isLoopback } from "./server.js";

function quiet(label, text, act) {
  return h("button", { type: "button", class: "quiet", "aria-label": label, title: label, text, on: { click: act } });
}

/** The row of tools above the planes. */
export class Tools {
  constructor({ state, volume, planes, navigation, expand }) {
    this.state = state;
    this.zoom = h("output", { class: "numbers", text: "1×" });
    const zoom = h(
      "div", { class: "zoom", role: "group", "aria-label": "Zoom" },
      quiet("Zoom out", "−", () => navigation.zoomBy(0.5)), this.zoom, quiet("Zoom in", "+", () => navigation.zoomBy(2)),
      quiet("Show the whole volume", "Whole", () => navigation.whole()),
    );
    const names = planes.map((plane) => [String(plane.number), plane.label]);
    this.layouts = planes.length > 1 && choice("layout", "Planes to show", [["all", "All"], ...names], "all", (layout) => state.set({ layout }));
    const levels = volume.levels.map((level, n) => h("option", { value: n, text: `${level.path.split("/").pop()}: ${level.dimensions.join(" × ")}` }));
    this.levels = levels.length > 1 && h(
      "select", { class: "quiet", "aria-label": "Level", on: { change: () => state.set({ level: this.levels.value === "" ? null : Number(this.levels.value) }) } },
      h("option", { value: "", text: "Level: auto" }), levels,
    );
    this.expander = quiet("Fill the window", "Expand", expand);
    // The token in an address lets everyone who has it read the data.
    const secret = new URLSearchParams(location.search).has("token") ? "Copy link (contains your token)" : "Copy link";
    const done = isLoopback ? "Copied: opens on this computer only" : "Copied";
    this.element = h(
      "div", { class: "tools" }, this.layouts, zoom, this.levels,
      h("span", { class: "end" }, this.expander, copyButton("Copy a link to this view", () => state.link(), secret, done)),
    );
  }

  show() {
    const { zoom, level } = this.state;
    this.zoom.textContent = `${Number(zoom.toPrecision(zoom < 10 ? 2 : 3))}×`;
    if (this.levels) this.levels.value = level ?? "";
  }

  showLayout(layout) {
    const input = this.layouts && this.layouts.querySelector(`input[value="${layout}"]`);
    if (input) input.checked = true;
  }

  showExpanded(isExpanded) {
    this.expander.textContent = isExpanded ? "Close" : "Expand";
    this.expander.setAttribute("aria-pressed", isExpanded);
  }
}

/** The slider of an axis, with a box for its number. `move(index)` is called when the reader has chosen an index. */
export class AxisSlider {
  /** `physical()` returns the position in the unit of the axis, as text. */
  constructor({ state, volume }, axis, physical, move) {
    const name = volume.axes[axis];
    const last = Math.max(0, volume.dimensions[axis] - 1);
    const limits = { min: 0, max: last, step: 1, value: state.position[axis] };
    Object.assign(this, { state, axis, last, physical, shown: null });
    this.range = h("input", { type: "range", ...limits, "aria-label": `Position along ${name}`, on: { input: () => move(Number(this.range.value)) } });
    this.box = h("input", {
      type: "number", ...limits, "aria-label": `Index along ${name}`,
      on: {
        change: () => {
          if (this.box.value !== "") move(Number(this.box.value));
          // The position has not changed if the number is outside the volume, or is none.
          this.shown = null;
          this.show();
        },
      },
    });
    this.text = h("span", { class: "physical" });
    this.element = h("div", { class: "slider", hidden: last === 0 }, h("span", { class: "label", text: name }), this.range, this.box, this.text);
  }

  show() {
    const { range, box, last } = this;
    const at = this.state.position[this.axis];
    const physical = this.physical();
    if (Number(range.value) !== at) range.value = at;
    // Keep the text that the reader is typing.
    if (this.shown !== at) box.value = at;
    this.shown = at;
    this.text.textContent = physical;
    range.setAttribute("aria-valuetext", `${at} of ${last}${physical && `, ${physical}`}`);
  }
}

/** Returns the text that explains gestures and keys. */
export function hintOf(isTouch, hasSeveralPlanes) {
  const touch = [
    "Two fingers move and zoom the picture.", hasSeveralPlanes ? "A tap moves the other planes." : "A tap shows the value.",
    "A double tap centres.",
  ];
  const mouse = [
    "Drag to move, Ctrl and the wheel to zoom; after a click, the wheel alone.",
    hasSeveralPlanes ? "A click moves the other planes. Shift and the wheel, or Page Up and Down, step through." : "A click shows the value.",
    "A double click centres.", "Keys: arrows move the point, + − zoom, 0 shows the whole, C centres, F fills the window.",
  ];
  return (isTouch ? touch : mouse).join(" ");
}

/** Returns the text for a gesture that scrolled the page instead of changing the picture. */
export function passedText(kind) {
  return kind === "touch" ? "Use two fingers to move the picture" : "Click, or hold Ctrl, to zoom with the wheel";
}
