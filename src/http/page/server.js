// Where the server is and how it is asked.

const main = document.querySelector("main");

/** Path of this directory in the container, without slashes at its ends. */
export const path = main.dataset.path;

/** The server's root as this browser sees it. */
export const root = new URL(main.dataset.base, location.href.split(/[?#]/)[0]);

/** The token of private data: it stays on every link and request. */
export const token = new URLSearchParams(location.search).get("token");

/** Whether the path itself carries a token. */
export const carriesToken = main.dataset.token !== undefined;

/** A name with everything encoded that the server encodes in its listings; quotes, too, for lines of shells. */
export function encodeName(name) {
  return encodeURIComponent(name).replace(/[!'()*]/g, (c) => "%" + c.charCodeAt(0).toString(16).toUpperCase());
}

export function encodePath(path) {
  return path.split("/").map(encodeName).join("/");
}

export function join(...parts) {
  return parts.filter(Boolean).join("/");
}

/** `text` with the token, for a URL that may have a query. */
export function withToken(text) {
  if (token === null) return text;
  return `${text}${text.includes("?") ? "&" : "?"}token=${encodeName(token)}`;
}

/** URL of `path` in a view; `query` is appended as it is. */
export function url(view, path, query = "") {
  return withToken(`${root.href}${view}/${encodePath(path)}${query && "?"}${query}`);
}

/** URL of a directory, with a slash at its end. */
export function directory(view, path) {
  return withToken(`${root.href}${view}/${path && `${encodePath(path)}/`}`);
}

/** A URL that the server made of its own idea of its address, as this browser must ask it. */
export function rebase(address, info) {
  const made = info.urls.info;
  const base = made.slice(0, made.length - `info/${encodePath(info.path)}`.length);
  return withToken(address.replace(base, root.href));
}

/** What the server says instead of an answer. */
export class Problem extends Error {
  constructor(status, document) {
    super(document?.detail ?? `The server answered ${status}.`);
    this.status = status;
    this.document = document;
  }
}

/** Fetches; anything but success is a Problem. */
export async function ask(address, signal) {
  const response = await fetch(address, { signal });
  if (response.ok) return response;
  const document = await response.json().catch(() => null);
  throw new Problem(response.status, document);
}

const infos = new Map();

/** `/info` of a path, asked for once. */
export function infoOf(path) {
  let info = infos.get(path);
  if (info === undefined) {
    info = ask(url("info", path)).then((response) => response.json());
    info.catch(() => infos.delete(path));
    infos.set(path, info);
  }
  return info;
}

const stats = new Map();

/** `/stats` of a path, asked for once; null where the server has none. */
export function statsOf(path) {
  if (!stats.has(path)) {
    const answer = ask(url("stats", path)).then((response) => response.json());
    stats.set(path, answer.catch(() => null));
  }
  return stats.get(path);
}
