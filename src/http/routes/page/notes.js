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

/** Returns the notes as pairs of a heading and sentences. Each program that refuses the data has a heading. */
export function grouped(problems) {
  const groups = new Map();
  const add = (heading, text) => groups.set(heading, [...(groups.get(heading) ?? []), text]);
  for (const problem of problems) {
    if (ABOUT_SIZE.test(problem) || CHANGED_SIZE.test(problem)) continue;
    const [, level = "", program, whole = "", reason] = /^(level [^:]+: )?(.{1,40}?) cannot read it( as one image)?: (.*)$/s.exec(problem) ?? [];
    const [, change] = /^as\/: (.*)$/s.exec(problem) ?? [];
    if (program) add(program, `${level}cannot read it${whole}: ${reason}`);
    else if (change) add("Strict readers: the re-encoded address (/as/) differs from the stored attributes", change);
    else add("In general", problem);
  }
  return [...groups];
}

/** Builds the list of compatibility notes; null if there are none. */
export function notes(info) {
  const groups = grouped(info.problems);
  const count = groups.reduce((sum, [, texts]) => sum + texts.length, 0);
  if (count === 0) return null;
  return h(
    "details",
    { class: "problems" },
    h("summary", { text: `${count} ${count === 1 ? "compatibility note" : "compatibility notes"}` }),
    groups.map(([heading, texts]) => [h("h3", { text: heading }), h("ul", {}, texts.map((text) => h("li", { text })))]).flat(),
  );
}
