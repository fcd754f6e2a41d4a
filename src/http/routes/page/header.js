// The top of a page: where the directory is, its name, what it is, and what can be done with it.

import { titleOf } from "./attribute_texts.js";
import { h } from "./dom.js";
import { kindsOf } from "./entry_facts.js";
import { main, path, withToken } from "./server.js";

const title = main.querySelector("h1");

/** Name of the server's only container; of several, or the demonstration's, "n5-server". */
const origin = main.dataset.name ?? "n5-server";

/** Builds the links to the directories above. */
function breadcrumb() {
  const names = path ? path.split("/") : [];
  const up = (n) => withToken(n === 0 ? "./" : "../".repeat(n));
  const crumbs = [origin, ...names].map((name, n) => {
    const last = n === names.length;
    const link = last ? h("span", { "aria-current": "page", text: name }) : h("a", { href: up(names.length - n), text: name });
    return h("li", {}, link);
  });
  return h("nav", { "aria-label": "Breadcrumb" }, h("ol", {}, crumbs));
}

/** Adds the top of the page and returns it. `facts` are texts about the directory, `actions` links and buttons. */
export function addHeader(info, facts, ...actions) {
  const own = titleOf(info.attributes);
  const name = path.split("/").pop() || own || info.name || "N5 container";
  const about = path ? own : info.name;
  title.textContent = name;
  document.title = path ? `${name} – ${origin}` : name;
  // The root of several containers is no group of data.
  const kinds = kindsOf(info).filter(([, kind]) => path || kind !== "group");
  const top = h(
    "header",
    { class: "top" },
    breadcrumb(),
    h("div", { class: "headline" },
      h("div", {}, title, h("p", { class: "subtitle" }, kinds.map(([text, kind]) => h("span", { class: `kind ${kind}`, text })),
        about && about !== name && h("span", { class: "about", text: about }), factsOf(facts))),
      h("div", { class: "actions" }, actions)),
  );
  main.prepend(top);
  return top;
}

/** Builds the elements of facts for the line below the name. */
export function factsOf(texts) {
  return texts.filter(Boolean).map((text) => h("span", { class: "fact", text }));
}

/** Replaces the name of the page. */
export function rename(name) {
  title.textContent = name;
  document.title = main.dataset.name ? `${name} – ${origin}` : name;
}

/** Says why a part of the page is missing. */
export function addFailure(text) {
  const note = h("p", { class: "note", role: "alert", text });
  const top = title.closest("header");
  if (top) top.after(note);
  else {
    main.prepend(breadcrumb());
    title.after(note);
  }
}
