// The description of a group in its attributes: title, description, people, licence and citation.

import { firstText as first, textOf } from "./attribute_texts.js";
import { h } from "./dom.js";

/** Returns an address if the text is a web address or a DOI; null otherwise. */
function addressOf(text) {
  const doi = text.match(/^(?:doi:\s*|https?:\/\/(?:dx\.)?doi\.org\/)?(10\.\d{4,9}\/[^\s"<>]+)$/i);
  if (doi) return ["https:", "", "doi.org", encodeURI(doi[1])].join("/");
  if (!/^https?:\/\/\S+$/i.test(text)) return null;
  try {
    const { protocol, href } = new URL(text);
    return protocol === "https:" || protocol === "http:" ? href : null;
  } catch {
    return null;
  }
}

function external(text, address) {
  return h("a", { href: address, rel: "noopener noreferrer", text });
}

/** Builds a text in which web addresses and DOIs are links. */
function linked(text) {
  const parts = text.split(/(https?:\/\/[^\s<>"]+[^\s<>".,;:!?)\]]|\b10\.\d{4,9}\/[^\s<>"]+[^\s<>".,;:!?)\]])/i);
  return parts.map((part) => {
    const address = addressOf(part);
    return address ? external(part, address) : part;
  });
}

/** Builds the licence: a text, or an object with a name and an address. */
function licence(value) {
  if (Array.isArray(value)) return value.flatMap((one, n) => [n > 0 ? ", " : "", ...(licence(one) ?? [])]);
  if (value !== null && typeof value === "object") {
    const address = addressOf(textOf(value.url ?? value.path ?? value.href ?? value["@id"]) ?? "");
    const name = textOf(value.name ?? value.title ?? value.id ?? value.identifier) ?? address;
    if (!name) return null;
    return [address ? external(name, address) : name];
  }
  const text = textOf(value);
  return text ? linked(text) : null;
}

/** Returns the names of people: texts, or objects with a name. */
function people(value) {
  const names = (Array.isArray(value) ? value : [value]).map((one) => {
    if (one === null || typeof one !== "object") return textOf(one);
    return textOf(one.name ?? [one.given ?? one.first_name ?? one.given_names, one.family ?? one.last_name ?? one.family_names].filter(Boolean).join(" "));
  });
  return names.filter(Boolean);
}

function any(attributes, names) {
  const key = Object.keys(attributes).find((own) => names.includes(own.toLowerCase()));
  return key === undefined ? null : attributes[key];
}

/** Builds a card with what the attributes say about a group; null if they say nothing. */
export function about(attributes) {
  const rows = [];
  const add = (label, content) => content?.length && rows.push(h("div", {}, h("dt", { text: label }), h("dd", {}, content)));
  const description = first(attributes, ["description", "abstract", "summary"]);
  const contributors = people(any(attributes, ["contributors", "authors", "author", "creators", "creator"]));
  add("Contributors", textOf(contributors.join(", ")));
  add("Licence", licence(any(attributes, ["license", "licence", "licenses", "rights"])));
  const citation = first(attributes, ["citation", "cite", "how_to_cite"]);
  if (citation) add("Citation", linked(citation));
  const doi = first(attributes, ["doi"]);
  if (doi && !citation?.includes(doi)) add("DOI", linked(doi));
  const address = first(attributes, ["url", "homepage", "website"]);
  if (address) add("Website", linked(address));
  if (!description && rows.length === 0) return null;
  const paragraphs = (description ?? "").split(/\n\s*\n/).filter(Boolean).map((text) => h("p", {}, linked(text)));
  return h("section", { class: "card about-group", "aria-label": "About" }, paragraphs, rows.length ? h("dl", { class: "facts" }, rows) : null);
}
