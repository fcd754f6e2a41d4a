// Texts in the attributes of a directory.

/** Maximum number of characters of a text that is shown. */
const MAX_TEXT = 4000;

/** Returns a text or number as a text that is not too long; null for anything else. */
export function textOf(value) {
  if (typeof value === "number") return String(value);
  if (typeof value !== "string" || value.trim() === "") return null;
  return value.length > MAX_TEXT ? `${value.slice(0, MAX_TEXT)} …` : value.trim();
}

/** Returns the first text among these attributes. */
export function firstText(attributes, names) {
  const key = Object.keys(attributes).find((own) => names.includes(own.toLowerCase()) && textOf(attributes[own]));
  return key === undefined ? null : textOf(attributes[key]);
}

/** Returns the title of a group; null if its attributes have none. */
export function titleOf(attributes) {
  return firstText(attributes, ["title"]) ?? firstText(attributes, ["name"]);
}
