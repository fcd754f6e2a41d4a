// The list of channels: which are shown, in which colours, and which one the contrast control changes.

import { SHOWN_AT_ONCE } from "./channels.js";
import { h } from "./dom.js";

/** Builds the list. `change()` is called after a channel was changed, `select(channel)` to change its contrast. */
export class ChannelControls {
  constructor(channels, change, select) {
    Object.assign(this, { channels, selected: channels.find(({ visible }) => visible) ?? channels[0] });
    this.note = h("p", { class: "note", role: "status" });
    this.rows = channels.map((channel) => {
      const visible = h("input", {
        type: "checkbox", "aria-label": `Show ${channel.name}`,
        on: { change: () => {
          const isFull = visible.checked && channels.filter((one) => one.visible).length >= SHOWN_AT_ONCE;
          this.note.textContent = isFull ? `${SHOWN_AT_ONCE} channels are shown at most. Hide one first.` : "";
          if (isFull) visible.checked = false;
          else {
            channel.visible = visible.checked;
            change();
          }
        } },
      });
      const colour = h("input", {
        type: "color", "aria-label": `Colour of ${channel.name}`,
        on: { input: () => {
          channel.colour = colour.value;
          change();
        } },
      });
      const name = h("button", {
        type: "button", class: "name", text: channel.name, title: `Change the contrast of ${channel.name}`,
        on: { click: () => {
          this.selected = channel;
          select(channel);
        } },
      });
      const window = h("span", { class: "numbers" });
      const element = h("li", {}, visible, colour, name, window);
      return { channel, visible, colour, name, window, element };
    });
    this.element = h("div", { class: "channels" },
      h("ul", { "aria-label": "Channels" }, this.rows.map(({ element }) => element)), this.note);
    this.show();
  }

  show() {
    for (const { channel, visible, colour, name, window, element } of this.rows) {
      visible.checked = channel.visible;
      if (colour.value !== channel.colour) colour.value = channel.colour;
      name.setAttribute("aria-pressed", String(channel === this.selected));
      element.classList.toggle("off", !channel.visible);
      const known = channel.visible && channel.window.distribution;
      window.textContent = known ? channel.window.value.map((value) => channel.window.text(value)).join(" – ") : "";
    }
  }
}
