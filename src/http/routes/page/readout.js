// Texts about what the preview shows: position and values, scale, damage, and why a plane is empty.

import { bytes, length, number, unit } from "./describe.js";
import { h } from "./dom.js";

/** Formats the position along an axis with its unit; empty if the size of voxels or its unit is unknown. */
export function physicalText({ units, voxelSize }, axis, position) {
  return units[axis] && voxelSize[axis] !== null ? `${number(position[axis] * voxelSize[axis])} ${unit(units[axis])}` : "";
}

/** Returns the size of an element along an axis for the scale bar, and a function that formats a length. */
export function rulerOf({ units, voxelSize }, axis) {
  if (units[axis] && voxelSize[axis] !== null) return { unit: voxelSize[axis], text: (size) => length(size, units[axis]) };
  return { unit: 1, text: (size) => `${number(size)} ${size === 1 ? "voxel" : "voxels"}` };
}

function valueTexts(display, sample) {
  if (!sample) return [h("span", { class: "faint", text: "…" })];
  const values = display.values(sample.tile.pictures, sample.column, sample.row);
  if (values.length > 0 && values.every(({ isDamaged }) => isDamaged)) return ["in a damaged block"];
  const texts = values.map(({ text, label, colour, isDamaged }, n) => {
    const mark = colour && h("span", { class: "swatch" });
    if (mark) mark.style.background = colour;
    return h("span", {}, n > 0 && ", ", mark, label && `${label} `, isDamaged ? "damaged" : text);
  });
  return sample.isHole ? [...texts, h("span", { class: "faint", text: " (never written)" })] : texts;
}

/** Returns elements that tell a position and the values there. `sample` is null if they have not arrived. */
export function placeTexts(volume, display, position, sample) {
  const places = volume.axes.map((name, axis) => {
    if (axis === volume.channel && display.mixes) return "";
    const physical = physicalText(volume, axis, position);
    return h("span", {}, h("b", { text: name }), ` ${position[axis]}`, physical && h("span", { class: "faint", text: ` (${physical})` }));
  });
  return [...places, h("span", { class: "value" }, h("b", { text: "value" }), " ", ...valueTexts(display, sample))];
}

/** Describes the scale of a plane: the level, the size of voxels on screen, and which elements are left out. */
export function scaleText(volume, plane, pixels) {
  const tile = plane.fine.find(({ pictures }) => pictures);
  const texts = [];
  if (volume.levels.length > 1 && tile) texts.push(`level ${tile.number + 1} of ${volume.levels.length}`);
  texts.push(pixels >= 1 ? `1 voxel = ${number(Number(pixels.toPrecision(3)))} px` : `1 px = ${number(Number((1 / pixels).toPrecision(3)))} voxels`);
  if (tile && Math.max(...tile.step) > 1) texts.push(`1 in ${Math.max(...tile.step)} elements along each axis`);
  return texts.join(" · ");
}

/** Explains why a plane is empty; null if it is not. `price` is its cost in bytes, if that is too much. */
export function emptyText(tiles, price) {
  if (price) return `Zoom in to see this plane: at this scale the server would decode ${bytes(price)}, because there is no coarser level.`;
  const failed = tiles.find(({ error }) => error);
  // A damaged block has a text of its own.
  if (!failed || !tiles.every(({ error }) => error) || failed.error.document?.block) return null;
  const why = { 413: "This plane is too large to decode. ", 501: "The server cannot decode this volume. " };
  return `${why[failed.error.status] ?? ""}${failed.error.message}`;
}

/** Says which block of some tiles is damaged and why; null if none is. */
export function damageText(display, tiles) {
  const found = new Map();
  let isUnread = false;
  for (const tile of tiles) {
    if (tile.error && !tile.pictures) found.set(tile.error.message, { text: tile.error.message });
    for (const { picture, error, isUnread: isMore } of display.faultsOf(tile.pictures)) {
      const { block } = error.document ?? {};
      isUnread ||= isMore === true;
      if (block) found.set(`${picture.path}/${block.join("/")}`, { picture, block, error });
      else found.set(error.message, { text: error.message });
    }
  }
  const [first] = found.values();
  if (!first) return null;
  const more = found.size - 1;
  const others = [
    more > 0 && ` ${more} more ${more === 1 ? "block is" : "blocks are"} damaged in this view.`,
    isUnread && " There are so many that parts of the view were not read.",
  ].filter(Boolean).join("");
  if (first.text) return first.text + others;
  const { picture, block, error } = first;
  const reason = error.message.replace(/^block \S+: /, "").replace(/\.$/, "");
  return `Block ${block.join(", ")} (${picture.path}/${block.join("/")}) is damaged: ${reason}.${others}`;
}
