// How elements become colours: the settings of the display, and the controls that change them.

import { ChannelControls } from "./channel_controls.js";
import { areDescribed, channelsOf, isTrueColour } from "./channels.js";
import { parseColour, parts as rgb } from "./colours.js";
import { ContrastControl, Window } from "./contrast.js";
import { number } from "./describe.js";
import { choice, h } from "./dom.js";
import { Overlay } from "./overlay.js";
import { drawLayers } from "./pixels.js";
import { commonAreas, damagedIn, elementsOf, isInside, partOf } from "./planes.js";
import { statsOf } from "./server.js";
import { TimePlayer, timeAxis } from "./time_player.js";
import { distributionOf, limitsOf, measureData, remarks } from "./value_statistics.js";
import { kindOf } from "./volume.js";

/** Maximum number of channels of an axis that are offered together, unless metadata describe them. */
const FEW_CHANNELS = 64;

/** Time in milliseconds in which the planes of the first view arrive. All of them decide the window of a channel. */
const SETTLING = 2000;

/** Maximum number of channels that are fetched together, if blocks hold several of them. */
const TOGETHER = 8;

/** Formats a window for the view's link, with as many digits as it needs. */
const exact = (value) => (typeof value === "bigint" ? String(value) : String(Number(value.toPrecision(7))));

/**
 * The display of a volume. `version` changes whenever `paint` would draw something else. The preview asks for `parts`
 * of each tile, draws them with `paint`, and hands what it shows to `measure`.
 */
export class Display {
  constructor(info, volume, state, statsWanted) {
    Object.assign(this, { info, volume, state, version: 0, chosen: null, mode: null, pictures: [], seen: null });
    this.automatic = kindOf(info, volume, null);
    this.isTrueColour = isTrueColour(info, volume);
    this.channels = channelsOf(info, volume);
    const shared = this.isTrueColour ? new Window(volume.dataType, limitsOf(volume.dataType)) : null;
    for (const channel of this.channels) channel.window = shared ?? new Window(volume.dataType, channel.window);
    this.initial = this.channels.map(({ visible, colour }) => ({ visible, colour }));
    this.hasChannels = volume.channel >= 0 && this.channels.length > 1;
    this.canMix = this.hasChannels && (areDescribed(info) || this.channels.length <= FEW_CHANNELS);
    this.build();
    this.register();
    statsWanted.then((stats) => this.adopt(stats));
  }

  build() {
    const { volume, state } = this;
    this.kinds = this.hasChannels && this.automatic === "image" ? null
      : choice("kind", "Show as", [["image", "Image"], ["segmentation", "Segmentation"]], this.automatic, (kind) => {
        this.chosen = kind;
        this.changed("kind");
      });
    this.modes = this.canMix && choice("colour", "Channels",
      [["all", this.isTrueColour ? "Colour" : "All channels"], ["one", "One channel"]], "all", (mode) => {
        this.mode = mode;
        this.changed("mode");
      });
    this.list = this.canMix && !this.isTrueColour
      ? new ChannelControls(this.channels, () => this.changed("channels"), () => this.bind()) : null;
    this.contrast = new ContrastControl(this.channels[0].window, () => this.changed(this.hasSeveral ? "channels" : "contrast"));
    this.contrast.measure = () => this.remeasure();
    this.remarks = h("ul", { class: "remarks", "aria-label": "Value statistics", hidden: true });
    this.overlay = new Overlay(this.info, volume, () => this.changed("labels"));
    const axis = timeAxis(volume);
    this.player = axis < 0 ? null : new TimePlayer(volume, state, axis);
    const left = volume.stack?.left ?? [];
    const note = left.length > 0 && h("p", { class: "note", text: `Not shown, because shape or type differ: ${left.join(", ")}.` });
    this.element = h("div", { class: "display" },
      this.player?.element, h("div", { class: "modes" }, this.kinds, this.modes), note,
      this.list?.element, this.contrast.element, this.remarks, this.overlay.element);
  }

  register() {
    const { state } = this;
    state.register("kind", {
      read: (text) => {
        this.chosen = ["image", "segmentation"].includes(text) ? text : null;
        this.show();
      },
      write: () => this.chosen,
    });
    if (this.canMix) {
      state.register("mode", {
        read: (text) => {
          this.mode = text === "one" ? "one" : null;
          this.show();
        },
        write: () => (this.mode === "one" ? "one" : null),
      });
    }
    if (this.hasSeveral) state.register("channels", { read: (text) => this.readChannels(text), write: () => this.writeChannels() });
    else {
      const [{ window }] = this.channels;
      state.register("contrast", {
        read: (text) => {
          window.chosen = this.parseWindow(window, (text ?? "").split(","));
          this.show();
        },
        write: () => (window.chosen ? window.chosen.map(exact).join() : null),
      });
    }
    state.register("labels", {
      read: (text) => {
        this.overlay.read(text);
        this.show();
      },
      write: () => this.overlay.write(),
    });
    state.subscribe((keys) => {
      if (keys.has("position") && this.mixes === false) this.bind();
    });
  }

  /** True if each channel has its own window. */
  get hasSeveral() {
    return this.channels.length > 1 && !this.isTrueColour;
  }

  get kind() {
    return this.chosen ?? this.automatic;
  }

  /** True if several channels are shown at once. Otherwise, the position chooses the channel. */
  get mixes() {
    return this.canMix && this.mode !== "one" && this.kind === "image";
  }

  /** Returns the channels that are shown. */
  get shown() {
    if (this.mixes) return this.channels.filter(({ visible }) => visible);
    const { channel } = this.volume;
    return [this.channels[channel < 0 ? 0 : this.state.position[channel]] ?? this.channels[0]];
  }

  // ---------------------------------------------------------------- the view's link

  parseWindow(window, texts) {
    const [low, high] = texts.map((text) => window.parse(text ?? ""));
    return texts.length === 2 && low !== null && high !== null && low <= high ? [low, high] : null;
  }

  /** Reads `0:ff00ff:100:400,2`: the visible channels, with their colours and windows where these were chosen. */
  readChannels(text) {
    const found = new Map((text ?? "").split(",").flatMap((item) => {
      const [index, colour, ...window] = item.split(":");
      return /^\d+$/.test(index) ? [[Number(index), { colour, window }]] : [];
    }));
    this.channels.forEach((channel, n) => {
      const given = found.get(n);
      channel.visible = text === null ? this.initial[n].visible : given !== undefined;
      channel.colour = (given?.colour && parseColour(given.colour)) || this.initial[n].colour;
      channel.window.chosen = given ? this.parseWindow(channel.window, given.window) : null;
    });
    this.show();
  }

  writeChannels() {
    const isDefault = this.channels.every(({ visible, colour, window }, n) =>
      visible === this.initial[n].visible && colour === this.initial[n].colour && !window.chosen);
    if (isDefault) return null;
    const items = this.channels.flatMap(({ index, visible, colour, window }, n) => {
      if (!visible) return [];
      const bounds = window.chosen ? `:${window.chosen.map(exact).join(":")}` : "";
      return [`${index}${colour !== this.initial[n].colour ? `:${colour.slice(1)}` : bounds && ":"}${bounds}`];
    });
    return items.join() || "none";
  }

  // ---------------------------------------------------------------- controls

  show() {
    this.version += 1;
    const check = (group, value) => {
      const input = group && group.querySelector(`input[value=${value}]`);
      if (input) input.checked = true;
    };
    check(this.kinds, this.kind);
    check(this.modes, this.mode ?? "all");
    if (this.modes) this.modes.hidden = this.kind === "segmentation";
    if (this.list) {
      this.list.element.hidden = !this.mixes;
      this.list.show();
    }
    this.contrast.element.hidden = this.kind === "segmentation";
    this.bind();
  }

  /** Shows the contrast of the selected channel. */
  bind() {
    const channel = this.mixes && this.list ? this.list.selected : this.shown[0] ?? this.channels[0];
    this.contrast.bind(channel.window, this.hasSeveral ? channel.name : null);
    this.list?.show();
    this.tell(channel);
  }

  changed(name) {
    this.show();
    this.state.changed(name);
  }

  /** Says what the picture cannot show: constants, NaN, infinities. */
  tell({ window }) {
    const whole = remarks(window.distribution);
    // The sample of the server may have missed what is on screen.
    const here = this.seen && this.seen.nan + this.seen.infinite > 0 && !this.hasSeveral ? remarks(this.seen) : [];
    const texts = whole.length ? whole : here.map((text) => text.replace("of the values", "of the values on screen"));
    if (this.remarks.textContent !== texts.join("")) this.remarks.replaceChildren(...texts.map((text) => h("li", { text })));
    this.remarks.hidden = texts.length === 0 || this.kind === "segmentation";
  }

  // ---------------------------------------------------------------- statistics

  adopt(stats) {
    if (stats) {
      this.automatic = kindOf(this.info, this.volume, stats);
      // Statistics of all channels together describe none of them.
      if (!this.hasSeveral) this.channels[0].window.know(distributionOf(stats), true);
    }
    this.changed("kind");
  }

  /** Takes the pictures on screen into account: windows of channels without statistics, and remarks. */
  measure(pictures) {
    this.pictures = pictures.flat().filter((picture) => picture?.data && !picture.of);
    if (this.pictures.length === 0) return;
    this.remeasure(false);
    this.overlay.seek();
  }

  remeasure(again = true) {
    let isNew = false;
    let seen = null;
    for (const channel of this.shown) {
      const { window } = channel;
      if (window.isFinal || (window.distribution && !again && performance.now() > window.settled)) continue;
      const found = this.measured(channel);
      seen ??= found;
      if (!found) continue;
      const isFirst = !window.distribution;
      const before = String(window.value);
      if (isFirst) window.settled = performance.now() + SETTLING;
      window.know(found);
      isNew ||= isFirst || String(window.value) !== before;
      if (isFirst && this.volume.stack) this.know(channel);
    }
    if (!this.hasSeveral) this.seen = seen ?? this.measured(this.channels[0]);
    if (isNew) this.changed("contrast");
    else this.bind();
  }

  /** Returns the distribution of a channel in the pictures on screen; null if they have none of it. */
  measured(channel) {
    const wanted = this.isTrueColour ? this.channels : [channel];
    const sources = this.pictures.flatMap((picture) => {
      const { channels, shownChannel } = picture;
      if (!channels) return shownChannel === undefined || shownChannel === channel.index ? [elementsOf(picture, channel.index)] : [];
      return wanted.filter(({ index }) => index >= channels[0] && index < channels[1]).map(({ index }) => elementsOf(picture, index));
    });
    const found = sources.length ? measureData(this.volume.dataType, sources) : null;
    return found && found.elements > 0 ? found : null;
  }

  /** Asks the server for the statistics of a setup. */
  async know(channel) {
    const path = this.volume.stack.pathOf(channel.index, 0);
    const stats = path && (await statsOf(path));
    if (!stats) return;
    channel.window.know(distributionOf(stats), true);
    this.changed("contrast");
  }

  // ---------------------------------------------------------------- tiles

  parts(level, position) {
    const labels = this.overlay.part(level);
    return [...this.imageParts(level, position), ...(labels ? [labels] : [])];
  }

  imageParts(level, position) {
    const { volume } = this;
    if (volume.stack) {
      const of = volume.channel < 0 ? [0] : this.mixes ? this.indexes() : [position[volume.channel]];
      return of.map((index) => ({ path: level.path, channels: null, make: volume.stack.partOf(volume, level, index, position), optional: true }));
    }
    if (!this.mixes) return [{ path: level.path, channels: null }];
    const count = this.channels.length;
    if (this.isTrueColour || (count <= TOGETHER && (level.info.block_size?.[volume.channel] ?? 1) > 1)) {
      return [{ path: level.path, channels: [0, count] }];
    }
    return this.indexes().map((index) => ({
      path: level.path, channels: null,
      make: (box, axes) => {
        const own = { start: [...box.start], stop: [...box.stop], step: box.step };
        [own.start[volume.channel], own.stop[volume.channel]] = [index, index + 1];
        return { ...partOf({ path: level.path, level, dataType: volume.dataType, box: own, axes }), shownChannel: index };
      },
    }));
  }

  /** Returns the numbers of the channels to fetch: at least one, for the size of the picture. */
  indexes() {
    const found = this.shown.map(({ index }) => index);
    return found.length ? found : [0];
  }

  /** Returns the layer of each channel that is shown: {channel, picture, offset, damaged}. */
  layers(pictures) {
    const images = pictures.filter((picture) => picture && !picture.of);
    return this.shown.flatMap((channel) => {
      const picture = images.find((one) => one.shownChannel === channel.index) ?? images.find((one) => one.shownChannel === undefined);
      if (!picture) return [];
      const offset = picture.channels ? (channel.index - picture.channels[0]) * picture.strides[2] : 0;
      return [{ channel, picture, offset, damaged: damagedIn(picture, channel.index) }];
    });
  }

  /**
   * Returns the damaged areas of a tile in the channels that are shown: `lost` are those where no channel is left,
   * `partial` those where at least one is missing. Both are areas of `picture`.
   */
  damageOf(pictures) {
    const layers = this.layers(pictures ?? []);
    const lists = layers.map(({ damaged }) => damaged.map(({ area }) => area));
    return { picture: layers[0]?.picture, lost: commonAreas(lists), partial: lists.flat() };
  }

  /** Returns what could not be read of the shown channels and of the labels on top: {picture, error, isUnread}. */
  faultsOf(pictures) {
    const labels = (pictures ?? []).filter((picture) => picture?.of).map((picture) => ({ picture, damaged: picture.damaged }));
    return [...this.layers(pictures ?? []), ...labels].flatMap(({ picture, damaged }) => damaged.map((one) => ({ ...one, picture })));
  }

  paint(canvas, pictures) {
    const size = pictures.find((picture) => picture && !picture.of);
    if (!size) return;
    const layers = this.layers(pictures).map(({ channel, picture, offset, damaged }) => ({
      ...picture, offset, damaged: damaged.map(({ area }) => area), window: channel.window.value, colour: this.mixes ? rgb(channel.colour) : [255, 255, 255],
    }));
    const labels = this.overlay.layer(pictures.find((picture) => picture?.of), size.width, size.height);
    drawLayers(canvas, size, this.kind, layers, labels);
  }

  /** Returns the values at a column and row, as {text, label, colour, isDamaged} for the readout. */
  values(pictures, column, row) {
    const found = this.layers(pictures).map(({ channel, picture: { data, strides }, offset, damaged }) => ({
      text: number(data[offset + column * strides[0] + row * strides[1]]),
      isDamaged: isInside(damaged.map(({ area }) => area), column, row),
      ...(this.mixes && this.hasSeveral ? { label: channel.name, colour: channel.colour } : {}),
    }));
    const label = this.overlay.value(pictures.find((picture) => picture?.of), column, row);
    return label ? [...found, label] : found;
  }

  marks() {
    const windows = this.kind === "image" ? [...new Set(this.shown.map(({ window }) => window))].map(({ value }) => value.map(String)) : [];
    return { kind: this.kind, window: windows.flat().join(), channels: this.mixes ? this.shown.map(({ index }) => index).join() : "" };
  }

  /** Connects the player with the preview, which has `element` and `load(position)`. */
  attach(preview) {
    this.player?.attach({ element: preview.element, load: (position) => preview.load(position) });
  }
}
