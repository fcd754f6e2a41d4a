// The dialog that downloads a part of a volume: region, level, format, and the request as code. The browser saves the
// file itself, without reading it into the page.

import { BoxDrawing } from "./box_drawing.js";
import { bytes, length, shape as times } from "./describe.js";
import { choice, copyButton, h } from "./dom.js";
import { FORMATS, contentOf, curlFor, fileIn, isTooLongForImageJ, pythonFor, requestFor } from "./download_request.js";
import { ask, carriesToken, token } from "./server.js";

export class Download {
  constructor(volume, preview) {
    const format = isTooLongForImageJ(volume.dataType) ? "npy" : "tiff";
    Object.assign(this, { volume, preview, mode: "view", format, level: preview.state.level ?? 0 });
    this.box = volume.dimensions.map((count) => [0, count]);
    this.modes = choice("region", "Region", [["view", "Current view"], ["whole", "Whole volume"], ["box", "Box"]], "view", (mode) => this.setMode(mode));
    this.rows = volume.axes.map((_, axis) => this.makeRow(axis));
    const levels = volume.levels.map((level, n) => h("option", { value: n, text: `${level.path.split("/").pop()}: ${times(level.dimensions)}` }));
    this.levels = h("select", { on: { change: () => this.set({ level: Number(this.levels.value) }) } }, levels);
    this.formats = choice("format", "Format", Object.entries(FORMATS).map(([key, { name }]) => [key, name]), format, (chosen) => this.set({ format: chosen }));
    this.contrast = h("input", { type: "checkbox", checked: true, on: { change: () => this.set({}) } });
    this.contrastRow = h("label", { class: "check" }, this.contrast, "With the contrast and colours on the page");
    this.rounded = h("input", { type: "checkbox", on: { change: () => this.set({}) } });
    this.roundedRow = h("label", { class: "check" }, this.rounded, "As 32-bit numbers that ImageJ opens. Values above 16,777,216 are rounded, so that labels may merge");
    this.content = h("p", { class: "note" });
    this.damage = h("p", { class: "note", text: "The page shows damaged blocks. The download of a region with such a block fails. Choose a region without it." });
    this.facts = h("dl", { class: "facts" });
    this.problem = h("div", { class: "problem", role: "status" });
    this.link = h("a", { class: "primary" });
    this.codes = { curl: h("code"), Python: h("code") };
    const caption = token !== null || carriesToken ? "Copy (contains your token)" : "Copy";
    const code = Object.entries(this.codes).flatMap(([name, text]) => [
      h("h3", { text: name }),
      h("div", { class: "code" }, h("pre", { tabindex: 0, "aria-label": name }, text), copyButton(`Copy for ${name}`, () => text.textContent, caption)),
    ]);
    const button = (text, click) => h("button", { type: "button", class: "quiet", text, on: { click } });
    const head = ["Axis", "Start", "Stop", "Elements", ""].map((text) => h(text ? "th" : "td", { text }));
    this.dialog = h(
      "dialog", { class: "download", "aria-label": "Download", closedby: "any" },
      h("header", {}, h("h2", { text: "Download" }), button("Close", () => this.dialog.close())),
      h("div", { class: "body" },
        h("div", { class: "row" }, this.modes, button("Draw a box…", () => this.draw())),
        h("table", {}, h("caption", { text: "In elements of the finest level. The stop is not included." }), h("tr", {}, head), this.rows.map(({ element }) => element)),
        levels.length > 1 && h("label", { class: "row" }, "Level", this.levels),
        h("div", {}, this.formats, this.content, this.contrastRow, this.roundedRow, this.damage),
        this.facts,
        h("details", {}, h("summary", { text: "The same with curl or Python" }), code)),
      h("footer", {}, this.problem, this.link),
    );
    document.body.append(this.dialog);
  }

  /** Returns true if only one index can be downloaded at once: setups and time points are datasets of their own. */
  isSingle(axis) {
    return Boolean(this.volume.stack) && axis >= this.volume.stack.rank;
  }

  makeRow(axis) {
    const { axes, dimensions, units, voxelSize } = this.volume;
    const [count, name] = [dimensions[axis], axes[axis]];
    const fields = ["Start", "Stop"].map((label, end) => h("input", {
      type: "number", min: end, max: count - 1 + end, "aria-label": `${label} along ${name}`, disabled: end === 1 && this.isSingle(axis),
      on: { change: ({ target }) => this.type(axis, end, target.value) },
    }));
    const size = h("td");
    const button = (text, range) => h("button", { type: "button", class: "quiet", text, "aria-label": `All of ${name}`, on: { click: () => this.range(axis, range()) } });
    const here = button("", () => this.here(axis));
    const all = !this.isSingle(axis) && button("All", () => [0, count]);
    const element = h("tr", {}, h("th", { text: name }), fields.map((field) => h("td", {}, field)), size, h("td", {}, count > 1 && all, count > 1 && here));
    const show = () => {
      const [from, to] = this.box[axis];
      fields.forEach((field, end) => (field.value = this.box[axis][end]));
      const voxel = units[axis] && voxelSize[axis];
      size.textContent = `${to - from} of ${count}${voxel ? `, ${length((to - from) * voxel, units[axis])}` : ""}`;
      here.textContent = `Only ${this.here(axis)[0]}`;
      here.setAttribute("aria-label", `Only ${name} ${this.here(axis)[0]}`);
    };
    return { element, show };
  }

  /** Returns the index along an axis that the page shows, as a range. */
  here(axis) {
    const at = this.preview.state.position[axis];
    return [at, at + 1];
  }

  /** Adopts what was typed as the start (0) or stop (1) of an axis. */
  type(axis, end, text) {
    const range = [...this.box[axis]];
    const value = Math.round(text === "" ? range[end] : Number(text));
    range[end] = Math.min(this.volume.dimensions[axis] - 1 + end, Math.max(end, value));
    if (this.isSingle(axis) || range[1] <= range[0]) range[1 - end] = range[end] + 1 - 2 * end;
    this.range(axis, range);
  }

  range(axis, range) {
    this.box[axis] = range;
    this.set({ mode: "box" });
  }

  setMode(mode) {
    if (mode === "whole") this.box = this.volume.dimensions.map((count, axis) => (this.isSingle(axis) ? this.here(axis) : [0, count]));
    if (mode === "view") this.box = this.viewed();
    this.set({ mode });
  }

  /** Returns the visible part of the plane that was used last, with the channels on display. */
  viewed() {
    const { active: { axes, view }, display } = this.preview;
    const ranges = view?.visible();
    return this.box.map((_, axis) => {
      const [from, to] = (axes.includes(axis) && ranges?.[axes.indexOf(axis)]) || [];
      if (from !== undefined) return [Math.floor(from), Math.max(Math.floor(from) + 1, Math.ceil(to))];
      const shown = axis === this.volume.channel && display.mixes && !this.isSingle(axis) ? display.shown.map(({ index }) => index) : [];
      return shown.length ? [Math.min(...shown), Math.max(...shown) + 1] : this.here(axis);
    });
  }

  /** Opens the dialog for what the page shows now or, if another region was chosen, for that. */
  open() {
    if (this.drawing?.done) {
      // `draw` opens the dialog then.
      this.drawing.end(null);
      return;
    }
    this.dialog.showModal();
    this.setMode(this.mode);
    this.modes.querySelector("input:checked").focus();
  }

  /** Closes the dialog while the reader draws a box on the planes. */
  async draw() {
    this.dialog.close();
    this.drawing ??= new BoxDrawing(this.preview);
    const box = await this.drawing.start(this.box, this.mode === "box");
    if (box) Object.assign(this, { box, mode: "box" });
    this.open();
  }

  /** Returns the part of the query with the contrast and the colours of the page, and the axis of mixed channels. */
  look() {
    const { preview: { display }, volume: { channel, dataType }, format } = this;
    const isUnchanged = dataType === "uint8" || (dataType === "uint16" && format === "png");
    const isImage = display.kind === "image";
    const { isPicture } = FORMATS[format];
    this.roundedRow.hidden = format !== "tiff" || !isTooLongForImageJ(dataType);
    this.damage.hidden = this.preview.damage.hidden;
    const dtype = !this.roundedRow.hidden && this.rounded.checked ? "float32" : null;
    this.contrastRow.hidden = !isPicture || !isImage || !isUnchanged;
    const mixed = isPicture && isImage && display.mixes && !this.isSingle(channel) ? channel : null;
    const isRanged = format === "tiff" && isImage;
    if ((!isPicture && !isRanged) || (isPicture && isUnchanged && !(isImage && this.contrast.checked))) return { look: "", mixed, dtype };
    if (!isImage) return { look: "", mixed, reason: `A picture of ${dataType} needs a contrast. Choose another format, or show the volume as an image.` };
    const windowOf = ({ window: { value: [low, high] } }) => [low, Number(low) === Number(high) ? Number(low) + 1 : high].join();
    const [from, to] = channel < 0 ? [0, 1] : this.box[channel];
    const inside = display.channels.filter(({ index }) => index >= from && index < to);
    // A TIFF has one range, so the windows of several channels are left out.
    if (isRanged && inside.length > 1 && display.hasSeveral) return { look: "", mixed, dtype };
    // The many channels of a spectrum share one window.
    if (mixed === null) return { look: `&window=${windowOf(inside[0] ?? display.channels[0])}`, mixed, dtype };
    const shown = inside.filter(({ visible }) => visible);
    if (!shown.length) return { look: "", mixed, reason: "The page shows none of these channels." };
    const list = (f, separator) => shown.map(f).join(separator);
    return { mixed, look: `&channels=${list(({ index }) => index)}&colors=${list(({ colour }) => colour.slice(1))}&window=${list(windowOf, ";")}` };
  }

  /** Changes settings, shows what would be downloaded, and asks the server if it would refuse. */
  set(changes) {
    Object.assign(this, changes);
    for (const row of this.rows) row.show();
    this.modes.querySelector(`[value=${this.mode}]`).checked = true;
    this.levels.value = this.level;
    const { look, mixed, dtype, reason } = this.look();
    const request = requestFor(this.volume, { box: this.box, level: this.level, format: this.format, look, mixed, dtype });
    this.check?.abort();
    if (!request) {
      this.refuse("The image has no data at this time point.");
      return;
    }
    this.content.textContent = contentOf(request);
    this.show(request, request.file, null);
    const long = request.kept.filter((axis) => axis !== mixed);
    if (reason) this.refuse(reason);
    else if (FORMATS[this.format].isPicture && long.length > 2) {
      const others = long.filter((axis) => !this.preview.active.axes.includes(axis));
      // The plane that the page shows, or the nearest one in the box.
      const at = (axis) => Math.min(this.box[axis][1] - 1, Math.max(this.box[axis][0], this.here(axis)[0]));
      const label = `Only ${others.map((axis) => `${request.names[axis]} ${at(axis)}`).join(", ")}`;
      this.refuse(`A picture shows one plane. Choose one index along ${others.map((axis) => request.names[axis]).join(" and ")}.`, label, () => {
        for (const axis of others) this.box[axis] = [at(axis), at(axis) + 1];
        this.set({ mode: "box" });
      });
    } else this.ask(request);
  }

  /** Shows the numbers and the code of a request. `size` is the length of the file, null while it is unknown. */
  show(request, file, size) {
    const row = (label, text) => h("div", {}, h("dt", { text: label }), h("dd", { text }));
    const { isPicture } = FORMATS[this.format];
    const text = bytes(size ?? request.bytes);
    this.facts.replaceChildren(
      row("Shape", `${times(request.shape)}, ${request.dataType}`),
      row("Size", isPicture && size === null ? `${text} before compression` : text),
      row("To decode", `${bytes(request.decoded)} in ${request.blocks} ${request.blocks === 1 ? "block" : "blocks"}`),
      row("File", file),
    );
    this.link.textContent = isPicture ? "Download" : `Download ${text}`;
    this.link.setAttribute("download", file);
    this.codes.curl.textContent = curlFor(request, file);
    this.codes.Python.textContent = pythonFor(request, file);
  }

  /** Lets the link save the file unless the server would refuse. */
  async ask(request) {
    this.refuse("");
    const controller = new AbortController();
    this.check = controller;
    const { signal } = controller;
    const answer = await fetch(request.address, { method: "HEAD", signal }).catch(() => null);
    // The reason is in the body, which the response to HEAD lacks.
    const error = answer && !answer.ok ? await ask(request.address, signal).catch((problem) => problem) : null;
    if (signal.aborted) return;
    controller.abort();
    if (error instanceof Error) {
      this.explain(request, error);
      return;
    }
    const size = answer?.ok && answer.headers.get("content-length");
    this.show(request, fileIn(answer?.headers.get("content-disposition")) ?? request.file, size ? Number(size) : null);
    this.link.href = request.address;
    this.link.removeAttribute("aria-disabled");
  }

  explain({ level, part }, error) {
    const piece = error.status === 413 && error.document?.piece;
    if (!piece) {
      this.refuse(error.message);
      return;
    }
    this.refuse(`This is too large for the server: ${error.message}. Choose a smaller box or a coarser level.`, `Take ${times(piece)}`, () => {
      part.forEach(([start, stop], axis) => {
        const factor = level.factors[axis];
        const middle = Math.floor(this.here(axis)[0] / factor - piece[axis] / 2);
        const from = Math.max(start, Math.min(stop - piece[axis], middle));
        const ends = [from, Math.min(stop, from + piece[axis])];
        this.box[axis] = ends.map((at) => Math.min(this.volume.dimensions[axis], Math.round(at * factor)));
      });
      this.set({ mode: "box" });
    });
  }

  /** Disables the link and says why, with a button that mends it. */
  refuse(text, label, click) {
    this.link.removeAttribute("href");
    this.link.setAttribute("aria-disabled", "true");
    const button = label && h("button", { type: "button", class: "quiet", text: label, on: { click } });
    this.problem.replaceChildren(...(text ? [h("p", { text }), button].filter(Boolean) : []));
  }
}
