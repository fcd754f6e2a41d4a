// What the page says about unusual metadata: invalid voxel sizes at the top, notes on compatibility by program.

import { h } from "./dom.js";

/** Statements about the voxel size. The page says these once, at the top. */
const ABOUT_SIZE = /^(?:level \S+: )?(?:resolution|pixelResolution|transform|scale) .*(?:is wrong|is not )/;
const CHANGED_SIZE = /^as\/: (?:values of )?resolution .*(?:become 1|is left out)/;

/** Returns a sentence about a voxel size that cannot be one; null if all is well. */
export function invalidSize(info) {
  const said = info.problems.find((text) => ABOUT_SIZE.test(text));
  return said ? `Invalid voxel size: ${said.replace(/\.$/, "")}.` : null;
}

/** The address at which a program can read converted data. z5 reads only files. */
const VIEWS = { Neuroglancer: "recommended", TensorStore: "as", "N5 for Java": "as", "zarr-python 2": "zarr2" };

/**
 * Returns groups of notes, {heading, texts, isRefused, isAboutFiles}. Each program that refuses the data has a group;
 * `isAboutFiles` if it reads the data at one of `urls`, or only files.
 */
function grouped(problems, urls) {
  const groups = new Map();
  const add = (heading, text, kind) => {
    if (!groups.has(heading)) groups.set(heading, { heading, texts: [], ...kind });
    groups.get(heading).texts.push(text);
  };
  /** Levels by program and reason. Several levels are often refused for the same one. */
  const levels = new Map();
  for (const problem of problems) {
    if (ABOUT_SIZE.test(problem) || CHANGED_SIZE.test(problem)) continue;
    const [, level, program, whole = "", reason] = /^(?:level ([^:]+): )?(.{1,40}?) cannot read it( as one image)?: (.*)$/s.exec(problem) ?? [];
    const [, change] = /^as\/: (.*)$/s.exec(problem) ?? [];
    if (program) {
      const key = JSON.stringify([program, `cannot read it${whole}: ${reason}`]);
      levels.set(key, [...(levels.get(key) ?? []), ...(level === undefined ? [] : [level])]);
    } else if (change) add("Strict readers: the re-encoded address (/as/) differs from the stored attributes", change);
    else add("In general", problem);
  }
  for (const [key, names] of levels) {
    const [program, text] = JSON.parse(key);
    add(program, `${names.length ? `level ${names.join(", ")}: ` : ""}${text}`, { isRefused: true, isAboutFiles: program === "z5" || Boolean(urls[VIEWS[program]]) });
  }
  return [...groups.values()];
}

/**
 * Builds the list of compatibility notes; null if there are none. Notes about files that this server converts come last
 * and do not count. The list is a warning if several programs cannot read the data here, or the page cannot show them.
 */
export function notes(info, isShown = true) {
  const groups = grouped(info.problems, info.urls);
  if (groups.length === 0) return null;
  const aboutFiles = groups.filter((group) => group.isAboutFiles);
  const counted = groups.filter((group) => !group.isAboutFiles);
  const count = counted.reduce((sum, { texts }) => sum + texts.length, 0);
  const list = (some) => some.flatMap((group) => [h("h3", { text: group.heading }), h("ul", {}, group.texts.map((text) => h("li", { text })))]);
  const isSevere = !isShown || counted.filter(({ isRefused }) => isRefused).length > 1;
  return h(
    "details",
    { class: isSevere ? "problems severe" : "problems" },
    h("summary", { text: count === 0 ? "Notes on the files as stored" : `${count} ${count === 1 ? "compatibility note" : "compatibility notes"}` }),
    list(counted),
    aboutFiles.length > 0 && [h("p", { class: "note", text: "Only for programs that read the files directly:" }), ...list(aboutFiles)],
  );
}
