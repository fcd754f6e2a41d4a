// URLs of the server, and requests to it.

export const main = document.querySelector("main");

/** Path of this directory in the container, without leading or trailing slashes. */
export const path = main.dataset.path;

/** URL of the server's root as seen by this browser. */
export const root = new URL(main.dataset.base, location.href.split(/[?#]/)[0]);

/** The access token in this page's query; it is added to every link and request. */
export const token = new URLSearchParams(location.search).get("token");

/** True if the path of this page contains a token. */
export const carriesToken = main.dataset.token !== undefined;

/** True if this page's address names the computer on which the browser runs. */
export const isLoopback = /^(localhost|.*\.localhost|127(\.\d+){3}|\[::1\])$/.test(location.hostname);

/** Percent-encodes a name as the server's listings do, including quotes, so that it is safe in shell commands. */
export function encodeName(name) {
  return encodeURIComponent(name).replace(/[!'()*]/g, (c) => "%" + c.charCodeAt(0).toString(16).toUpperCase());
}

export function encodePath(path) {
  return path.split("/").map(encodeName).join("/");
}

export function join(...parts) {
  return parts.filter(Boolean).join("/");
}

/** Appends the token to a URL that may have a query. */
export function withToken(text) {
  if (token === null) return text;
  return `${text}${text.includes("?") ? "&" : "?"}token=${encodeName(token)}`;
}

/** Returns the URL of `path` in a view. `query` is appended unchanged. */
export function url(view, path, query = "") {
  return withToken(`${root.href}${view}/${encodePath(path)}${query && "?"}${query}`);
}

/** Returns the URL of a directory, with a trailing slash. */
export function directory(view, path) {
  return withToken(`${root.href}${view}/${path && `${encodePath(path)}/`}`);
}

/** Replaces the base of a URL from `/info`, the server's own view of its address, by the one seen by this browser. */
export function rebase(address, info) {
  const made = info.urls.info;
  const base = made.slice(0, made.length - `info/${encodePath(info.path)}`.length);
  return withToken(address.replace(base, root.href));
}

/** An error response of the server. */
export class Problem extends Error {
  constructor(status, document) {
    super(document?.detail ?? `The server responded with status ${status}.`);
    this.status = status;
    this.document = document;
  }
}

/** Fetches a URL. Throws a `Problem` unless the response is successful. */
export async function ask(address, signal) {
  const response = await fetch(address, { signal });
  if (response.ok) return response;
  const document = await response.json().catch(() => null);
  throw Object.assign(new Problem(response.status, document), { retryAfter: Number(response.headers.get("retry-after")) });
}

/** Returns the names of the directories in a group. */
export async function childrenOf(path) {
  const address = directory("n5", path);
  const response = await ask(`${address}${address.includes("?") ? "&" : "?"}format=json`);
  const { entries } = await response.json();
  return entries.filter(({ kind }) => kind !== "file").map(({ name }) => name);
}

const infos = new Map();

/** Returns `/info` of a path, requested only once. */
export function infoOf(path) {
  let info = infos.get(path);
  if (info === undefined) {
    info = ask(url("info", path)).then((response) => response.json());
    info.catch(() => infos.delete(path));
    infos.set(path, info);
  }
  return info;
}

/** Parses JSON. Integers that numbers cannot hold become `BigInt`s, if the browser gives their text. */
export function parseExactly(text) {
  const exact = (_, value, context) =>
    typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "") ? BigInt(context.source) : value;
  return JSON.parse(text, exact);
}

const range = (from, to, step) => Array.from({ length: Math.floor((to - from) / step) + 1 }, (_, n) => from + n * step);

/** Query of `/stats`. It requests nearly as many percentiles as the server allows, and a fine histogram. */
const STATS_QUERY = `bins=1024&percentiles=${[0.01, 0.1, 0.5, ...range(1, 30, 1), ...range(32, 70, 2), ...range(71, 99, 1), 99.5, 99.9, 99.95, 99.99]}`;

const stats = new Map();

/** Returns `/stats` of a path, requested only once; null if the request fails. */
export function statsOf(path) {
  if (!stats.has(path)) {
    const statistics = ask(url("stats", path, STATS_QUERY)).then((response) => response.text()).then(parseExactly);
    stats.set(path, statistics.catch(() => null));
  }
  return stats.get(path);
}

const styles = new Map();

/** Adds a style to the page, once. Resolves when it applies or cannot be loaded. */
export function addStyle(name) {
  if (!styles.has(name)) {
    const link = Object.assign(document.createElement("link"), { rel: "stylesheet", href: new URL(name, import.meta.url).href });
    styles.set(name, new Promise((resolve) => (link.onload = link.onerror = resolve)));
    document.head.append(link);
  }
  return styles.get(name);
}

/** Begins to fetch scripts together that would otherwise be found one after another, by their imports. */
export function preload(names) {
  for (const name of names) {
    document.head.append(Object.assign(document.createElement("link"), { rel: "modulepreload", href: new URL(name, import.meta.url).href }));
  }
}
