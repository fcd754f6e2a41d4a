// The listing: details of each entry, and a search field.

import { summary } from "./describe.js";
import { h } from "./dom.js";
import { thumbnail } from "./thumbnail.js";
import { infoOf, join, path, token, withToken } from "./server.js";

/** Maximum number of concurrent requests for details of entries. */
const AT_ONCE = 4;

/** Returns the names of the directories in the listing. */
export function directories() {
  // Uses the text of the links, because their URLs may end in a token.
  const names = [...document.querySelectorAll("#entries a")].map((link) => link.textContent);
  return names.filter((name) => name.endsWith("/")).map((name) => name.slice(0, -1));
}

function describeWhenSeen(items) {
  const waiting = [];
  let running = 0;
  const next = async () => {
    const item = waiting.shift();
    if (!item || running >= AT_ONCE) {
      if (item) waiting.unshift(item);
      return;
    }
    running += 1;
    const info = await infoOf(join(path, item.name)).catch(() => null);
    if (info) {
      await describe(item, info);
      const picture = await thumbnail(info).catch(() => null);
      if (picture) item.picture.append(picture);
    }
    running -= 1;
    next();
  };
  const observer = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target } of seen) {
      if (!isIntersecting) continue;
      observer.unobserve(target);
      waiting.push(items.find((item) => item.element === target));
      next();
    }
  }, { rootMargin: "200px" });
  for (const item of items) if (item.name !== null) observer.observe(item.element);
}

async function describe(item, info) {
  const finest = info.kind === "multiscale" ? await infoOf(join(info.path, info.multiscale.levels[0].path)).catch(() => null) : null;
  const { kind, name, detail } = summary(info, finest);
  item.element.dataset.kind = kind;
  item.detail.replaceChildren(
    h("span", { class: `kind ${kind}`, text: kind }),
    name && name !== item.name ? h("span", { class: "name", text: name }) : "",
    ...detail.filter(Boolean).map((text) => h("span", { class: "fact", text })),
  );
}

/** Builds the link to the first page of a listing that has several pages. */
function fromStart() {
  const blocks = new URLSearchParams(location.search).get("blocks");
  return h("a", { href: withToken(blocks === null ? "./" : `./?blocks=${encodeURIComponent(blocks)}`), text: "Back to the first page" });
}

/** Adds details, thumbnails and a search field to the plain list. */
export function enliven(heading) {
  const list = document.querySelector("#entries");
  const items = [...list.children].map((element) => {
    const link = element.querySelector("a");
    link.setAttribute("href", withToken(link.getAttribute("href")));
    const text = link.textContent;
    const detail = h("span", { class: "detail" });
    const picture = h("span", { class: "picture", "aria-hidden": "true" });
    element.append(picture, detail);
    if (!text.endsWith("/")) {
      element.dataset.kind = "file";
      detail.append(h("span", { class: "kind file", text: "JSON" }));
    }
    return { element, link, detail, picture, text: text.toLowerCase(), name: text.endsWith("/") ? text.slice(0, -1) : null };
  });
  const count = h("span", { class: "count", role: "status" });
  const more = document.querySelector("#more");
  const after = new URLSearchParams(location.search).get("after");
  const part = more !== null || after !== null;
  const search = h("input", {
    type: "search", placeholder: part ? "Search this page" : "Search",
    "aria-label": part ? "Search this page of the listing" : "Search this listing", autocomplete: "off", spellcheck: "false",
  });
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const item of items) {
      const text = `${item.text} ${item.detail.textContent.toLowerCase()}`;
      item.element.hidden = !words.every((word) => text.includes(word));
      shown += item.element.hidden ? 0 : 1;
    }
    const number = items.length.toLocaleString("en");
    const first = more && after === null ? "first " : "";
    const entries = `${first}${number} ${items.length === 1 ? "entry" : "entries"}${after === null ? "" : ` after ${after}`}`;
    count.textContent = words.length ? `${shown} of ${entries}` : entries;
  };
  search.addEventListener("input", filter);
  search.addEventListener("keydown", (event) => {
    const first = items.find((item) => !item.element.hidden);
    if (event.key === "Enter" && first && search.value.trim()) first.link.click();
    if (event.key === "Escape") {
      search.value = "";
      filter();
    }
  });
  document.addEventListener("keydown", (event) => {
    const typing = /^(input|textarea|select)$/i.test(event.target.tagName ?? "");
    if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    search.focus();
  });
  filter();
  const section = h("section", { class: "contents", "aria-label": heading });
  list.before(section);
  section.append(
    h("div", { class: "bar" }, h("h2", { text: heading }), count, after === null ? "" : fromStart(), items.length > 1 ? search : ""),
    ...[list, document.querySelector("#entries ~ p"), more].filter(Boolean),
  );
  if (more && token !== null) more.append(h("input", { type: "hidden", name: "token", value: token }));
  describeWhenSeen(items);
}
