// Labels on top of an image: a segmentation beside it or elsewhere on the server, mixed into the image's colours.

import { labelColour } from "./colours.js";
import { h } from "./dom.js";
import { partOf } from "./planes.js";
import { childrenOf, infoOf, join } from "./server.js";
import { nameOf } from "./subtree.js";
import { kindOf, volumeOf } from "./volume.js";

/** Maximum number of siblings that are examined. */
const CANDIDATES = 24;
const LIKELY = /(label|seg|mask|annotation|nuclei|instance|gt)/i;
const OPACITY = 0.4;

const METRES = { m: 1, cm: 1e-2, mm: 1e-3, um: 1e-6, "µm": 1e-6, "μm": 1e-6, nm: 1e-9, pm: 1e-12, "å": 1e-10, angstrom: 1e-10,
  meter: 1, metre: 1, millimeter: 1e-3, millimetre: 1e-3, micron: 1e-6, micrometer: 1e-6, micrometre: 1e-6, nanometer: 1e-9, nanometre: 1e-9 };

/** Returns the size of a voxel and the place of the first corner along an axis, in metres if the unit is known. */
function gridOf({ info, volume }, axis) {
  const given = info.resolution ?? volume.finest.resolution;
  const size = given?.[axis];
  if (!Number.isFinite(size) || size <= 0) return null;
  const unit = (volume.units[axis] ?? "").toLowerCase().replace(/s$/, "");
  const centre = info.multiscale?.levels[0]?.translation?.[axis] ?? 0;
  const scale = METRES[unit] ?? 1;
  return { unit: unit in METRES ? "m" : unit, size: size * scale, corner: (centre - size / 2) * scale };
}

/**
 * Returns where the elements of an image lie among those of labels: for each axis of the labels [axis of the image, a,
 * b], so that a * place + b is the place along the axis of the labels, both in elements of the finest level. Returns
 * null if the two do not show the same part of space.
 */
export function alignment(image, labels) {
  const names = (volume) => volume.axes.map((name) => name.toLowerCase());
  const [ours, theirs] = [names(image.volume), names(labels.volume)];
  const spatial = (axis) => axis !== image.volume.channel && !/^t(ime)?$/.test(ours[axis]);
  // An axis of the image that the labels lack must be that of channels or of time.
  if (ours.some((name, axis) => spatial(axis) && !theirs.includes(name))) return null;
  const pairs = theirs.map((name) => ours.indexOf(name));
  if (pairs.some((axis, n) => axis < 0 && labels.volume.dimensions[n] > 1)) return null;
  const lengths = pairs.map((axis, n) => [axis < 0 ? 1 : image.volume.dimensions[axis], labels.volume.dimensions[n]]);
  const grids = pairs.map((axis, n) => (axis >= 0 && spatial(axis) ? [gridOf(image, axis), gridOf(labels, n)] : null));
  const isCalibrated = grids.every((grid) => grid === null || (grid[0] && grid[1] && grid[0].unit === grid[1].unit));
  const found = pairs.map((axis, n) => {
    if (axis < 0) return [-1, 0, 0];
    if (!grids[n] || !isCalibrated) return lengths[n][0] === lengths[n][1] ? [axis, 1, 0] : null;
    const [from, to] = grids[n];
    const line = [axis, from.size / to.size, (from.corner - to.corner) / to.size];
    const end = line[1] * lengths[n][0] + line[2];
    return end > 0 && line[2] < lengths[n][1] ? line : null;
  });
  return found.includes(null) ? null : found;
}

/** The overlay. `changed()` is called when it must be drawn anew. */
export class Overlay {
  constructor(info, volume, changed) {
    Object.assign(this, { image: { info, volume }, changed, labels: null, wanted: null, opacity: OPACITY, isSought: false });
    this.select = h("select", {
      "aria-label": "Labels on top",
      on: { change: () => this.choose(this.select.value || null), pointerenter: () => this.seekElsewhere(), focus: () => this.seekElsewhere() },
    }, h("option", { value: "", text: "None" }));
    this.range = h("input", {
      type: "range", min: 0, max: 100, step: 5, value: OPACITY * 100, "aria-label": "Opacity of the labels",
      on: { input: () => {
        this.opacity = Number(this.range.value) / 100;
        this.changed();
      } },
    });
    this.note = h("p", { class: "note", role: "status" });
    this.element = h("div", { class: "overlay", hidden: true },
      h("span", { class: "label", text: "Labels on top" }), this.select, this.range, this.note);
    this.show();
  }

  get parent() {
    return this.image.info.path.split("/").slice(0, -1).join("/");
  }

  /** Offers the segmentations beside the image, once. */
  async seek() {
    if (this.isSought || this.image.info.path === "") return;
    this.isSought = true;
    const own = this.image.info.path.split("/").pop();
    const names = (await childrenOf(this.parent).catch(() => [])).filter((name) => name !== own);
    names.sort((a, b) => LIKELY.test(b) - LIKELY.test(a));
    for (const name of names.slice(0, CANDIDATES)) {
      // A sibling that cannot be read is not offered.
      if (await this.load(name).catch(() => null)) this.offer(name);
    }
    // Labels beside the image are most likely its own. Others are then sought only if the reader opens the list.
    if (this.select.options.length < 2) await this.seekElsewhere();
  }

  /** Offers segmentations that are not beside the image, once. Their names are paths from the server's root. */
  async seekElsewhere() {
    if (this.isSoughtElsewhere) return;
    this.isSoughtElsewhere = true;
    const { info, volume } = this.image;
    const paths = await import("./label_search.js").then(({ labelsElsewhere }) => labelsElsewhere(info, volume)).catch(() => []);
    for (const path of paths) if (await this.load(`/${path}`).catch(() => null)) this.offer(`/${path}`);
  }

  offer(name) {
    if (![...this.select.options].some((option) => option.value === name)) this.select.append(h("option", { value: name, text: name.replace("/", "") }));
    this.show();
  }

  /**
   * Returns a segmentation with its place relative to the image; null if it does not show the same space. `name` is
   * that of a sibling or, after a slash, a path from the server's root.
   */
  async load(name) {
    const info = await infoOf(name.startsWith("/") ? name.slice(1) : join(this.parent, name));
    if (info.kind === "group" || info.volume === "image") return null;
    const volume = await volumeOf(info);
    if (!volume || volume.dimensions.includes(0) || volume.dataType.startsWith("float") || kindOf(info, volume, null) !== "segmentation") return null;
    const aligned = alignment(this.image, { info, volume });
    return aligned && { name, info, volume, aligned };
  }

  /** Shows the labels of this name; null for none. */
  async choose(name) {
    this.wanted = name;
    this.note.textContent = "";
    const labels = name === null ? null : await this.load(name).catch(() => null);
    if (this.wanted !== name) return;
    this.labels = labels;
    if (name !== null && !labels) {
      this.note.textContent = `${name} is not a segmentation of the same space as this image.`;
      this.wanted = null;
    } else if (labels) this.offer(name);
    this.show();
    this.changed();
  }

  show() {
    this.element.hidden = this.select.options.length < 2 && this.note.textContent === "";
    this.select.value = this.labels?.name ?? this.wanted ?? "";
    this.range.value = Math.round(this.opacity * 100);
    this.range.disabled = !this.labels;
  }

  /** Reads the section of the view: `name` or `name@opacity`. */
  read(text) {
    const [, name, opacity] = /^(.*?)(?:@([\d.]+))?$/s.exec(text ?? "");
    this.opacity = opacity === undefined ? OPACITY : Math.min(1, Math.max(0, Number(opacity) || 0));
    // A path could otherwise lead out of the container.
    const isPath = name.startsWith("/") && !/\/\.{0,2}(\/|$)/.test(name);
    const wanted = name === "" || (name.includes("/") && !isPath) ? null : name;
    if (wanted !== this.wanted) this.choose(wanted);
    this.show();
  }

  write() {
    if (!this.wanted) return null;
    return this.opacity === OPACITY ? this.wanted : `${this.wanted}@${Number(this.opacity.toFixed(2))}`;
  }

  /** Returns the part of the tile with the labels; null if none are shown. `level` is that of the image. */
  part(level) {
    if (!this.labels) return null;
    const { volume, aligned } = this.labels;
    // Each element of the labels is at most about as large as one of the image, if there is such a level.
    const isFine = (candidate) => aligned.every(([axis, ratio], n) =>
      axis < 0 || candidate.factors[n] <= 1.01 || candidate.factors[n] <= 1.1 * ratio * level.factors[axis]);
    const chosen = volume.levels[Math.max(0, volume.levels.findLastIndex(isFine))];
    const place = (axis) => {
      const n = aligned.findIndex(([one]) => one === axis);
      return n < 0 ? null : n;
    };
    /** Returns the index along axis `n` of the labels at the middle of an element of the image's level. */
    const index = (n, at) => {
      const [axis, ratio, shift] = aligned[n];
      if (axis < 0) return 0;
      return Math.floor((ratio * (at + 0.5) * level.factors[axis] + shift) / chosen.factors[n]);
    };
    const make = (box, axes) => {
      const cut = { start: [], stop: [], step: [] };
      for (let n = 0; n < volume.rank; n += 1) {
        const axis = aligned[n][0];
        const count = axis < 0 ? 1 : Math.ceil((box.stop[axis] - box.start[axis]) / box.step[axis]);
        const [first, last] = axis < 0 ? [0, 0] : [box.start[axis], box.start[axis] + (count - 1) * box.step[axis]].map((at) => index(n, at));
        const length = chosen.dimensions[n];
        if (last < 0 || first >= length) return null;
        const step = count > 1 ? Math.max(1, Math.floor((last - first) / (count - 1))) : 1;
        cut.start.push(Math.max(0, first));
        cut.stop.push(Math.min(length, last + 1));
        cut.step.push(step);
      }
      const shown = axes.map((axis) => (axis === null ? null : place(axis)));
      if (shown[0] === null) return null;
      const part = partOf({ path: chosen.path, level: chosen, dataType: volume.dataType, box: cut, axes: shown });
      return { ...part, index, of: { axes, start: box.start, step: box.step } };
    };
    return { path: chosen.path, channels: null, make, optional: true };
  }

  /** Returns for each pixel along an axis of the plane the place in the picture of the labels; -1 for none. */
  places(picture, n, count) {
    const { axes, index, of } = picture;
    const axis = axes[n];
    if (axis === null) return Int32Array.from({ length: count }, () => 0);
    const along = of.axes[n];
    const length = n === 0 ? picture.width : picture.height;
    return Int32Array.from({ length: count }, (_, at) => {
      const found = index(axis, of.start[along] + at * of.step[along]);
      // Between the elements that were fetched, the nearest one counts.
      const place = Math.round((found - picture.start[axis]) / picture.step[axis]);
      return found < 0 || found >= picture.level.dimensions[axis] ? -1 : Math.min(length - 1, Math.max(0, place));
    });
  }

  /** Returns the labels as `drawLayers` takes them. */
  layer(picture, width, height) {
    if (!picture) return null;
    return { ...picture, columns: this.places(picture, 0, width), rows: this.places(picture, 1, height), opacity: this.opacity };
  }

  /** Returns the label at a column and row of the image, for the readout. */
  value(picture, column, row) {
    if (!picture || !this.labels) return null;
    const [across, down] = [this.places(picture, 0, column + 1)[column], this.places(picture, 1, row + 1)[row]];
    if (across < 0 || down < 0) return null;
    const label = picture.data[across * picture.strides[0] + down * picture.strides[1]];
    if (label === undefined) return null;
    return { text: String(label), label: nameOf(this.labels.name), colour: labelColour(label) };
  }
}
