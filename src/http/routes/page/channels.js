// The channels of a volume: their names, colours and windows, from metadata or with defaults.

import { RED_GREEN_BLUE, channelColour, parseColour } from "./colours.js";
import { isColour } from "./volume.js";

/** Maximum number of channels that are shown at once. */
export const SHOWN_AT_ONCE = 8;

/** Number of channels beyond which they are a spectrum: they share one window and are shown one at a time. */
const SPECTRUM = 512;

/** Returns the `omero` object of a group, as written by OME-NGFF 0.4 and 0.5; null if there is none. */
function omeroOf(attributes) {
  const found = attributes?.omero ?? attributes?.ome?.omero ?? attributes?.multiscales?.[0]?.omero;
  return Array.isArray(found?.channels) ? found : null;
}

/** Returns the channels as metadata describe them; null if they do not. Those of a level are with its image. */
function describedOf(info) {
  return omeroOf(info.attributes)?.channels ?? info.channels ?? null;
}

function windowOf(described) {
  const { start, end } = described?.window ?? {};
  return Number.isFinite(start) && Number.isFinite(end) && start < end ? [start, end] : null;
}

/** Names of channels elsewhere: a list beside the axes, as several writers store it. */
function namesOf(attributes) {
  for (const key of ["channelNames", "channel_names", "channels"]) {
    const list = attributes?.[key];
    if (!Array.isArray(list)) continue;
    const names = list.map((one) => (typeof one === "string" ? one : one?.name ?? one?.label ?? null));
    if (names.some((name) => typeof name === "string")) return names;
  }
  return [];
}

/**
 * Returns the channels of a volume in order: {index, name, colour, visible, window}. `window` is null unless metadata
 * give one. A volume without a channel axis has one channel.
 */
export function channelsOf(info, volume) {
  const length = volume.channel < 0 ? 1 : volume.dimensions[volume.channel];
  const count = length > SPECTRUM ? 1 : length;
  const described = describedOf(info) ?? describedOf(volume.finest) ?? [];
  const names = volume.stack?.names ?? namesOf(info.attributes);
  const hasActive = described.some((one) => one?.active === true);
  let visible = 0;
  return Array.from({ length: count }, (_, index) => {
    const own = described[index];
    const text = [own?.label, own?.name, names[index]].find((name) => typeof name === "string" && name.trim() !== "");
    const wanted = hasActive ? own?.active === true : own?.active !== false;
    const isVisible = wanted && visible < SHOWN_AT_ONCE;
    visible += isVisible ? 1 : 0;
    const usual = isColour(volume) ? RED_GREEN_BLUE[index] : channelColour(index, count);
    return {
      index, name: text ?? `${volume.stack ? "setup" : "channel"} ${index}`, visible: isVisible,
      colour: (own?.color !== undefined && parseColour(own.color)) || usual, window: windowOf(own),
    };
  });
}

/** Returns true if the channels are the red, green and blue of a photograph, which share one window. */
export function isTrueColour(info, volume) {
  return isColour(volume) && describedOf(info) === null;
}

/** Returns true if metadata describe the channels. */
export function areDescribed(info) {
  return describedOf(info) !== null;
}
