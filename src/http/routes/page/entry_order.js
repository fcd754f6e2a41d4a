// Orders of the entries of a listing.

import { factsOf } from "./entry_facts.js";

/** Orders names as people do: `s2` before `s10`. */
export const natural = new Intl.Collator("en", { numeric: true }).compare;

const elements = (entry) => (entry?.dimensions ?? []).reduce((product, n) => product * n, 1);
const compareLists = (a, b) => {
  const n = a.findIndex((value, index) => value !== b[index]);
  return n < 0 ? a.length - b.length : a[n] - (b[n] ?? -1);
};

/** Orders of the list: how two entries with a description compare, and which entries can be compared. */
const ORDERS = {
  name: ["Name", null],
  kind: ["Kind", (a, b) => natural(factsOf(a)[0] ?? "", factsOf(b)[0] ?? "")],
  shape: ["Shape", (a, b) => compareLists(a.dimensions ?? [], b.dimensions ?? []), (entry) => entry.dimensions],
  type: ["Data type", (a, b) => natural(a.data_type ?? "", b.data_type ?? ""), (entry) => entry.data_type],
  size: ["Size", (a, b) => Number(a.size_bytes ?? elements(a)) - Number(b.size_bytes ?? elements(b)), (entry) => entry.dimensions],
};

/** Names of the orders, as [key, text]. */
export const orderNames = Object.entries(ORDERS).map(([key, [text]]) => [key, text]);

/** Returns the items in an order. Items without what the order compares come last, and files after directories. */
export function sorted(items, order, isDescending) {
  const byFile = (a, b) => (a.name === null) - (b.name === null);
  const byName = (a, b) => byFile(a, b) || natural(a.label, b.label);
  const [, compare, has = () => true] = ORDERS[order];
  const sign = isDescending ? -1 : 1;
  const isKnown = ({ entry }) => Boolean(entry && has(entry));
  const byOrder = (a, b) => isKnown(b) - isKnown(a) || (isKnown(a) ? sign * compare(a.entry, b.entry) : 0) || byName(a, b);
  return [...items].sort(compare ? byOrder : (a, b) => byFile(a, b) || sign * natural(a.label, b.label));
}
