// Requests to the server; its errors are one sentence.

const KEY = "nearkin-key";

// The key comes with the first address, `#key=…`, and is then removed from it.
const given = new URLSearchParams(location.hash.slice(1));
if (given.has("key")) {
  sessionStorage.setItem(KEY, given.get("key"));
  given.delete("key");
  history.replaceState(null, "", given.size ? `#${given}` : location.pathname + location.search);
}

export const setKey = (key) => sessionStorage.setItem(KEY, key);
const headers = () => (sessionStorage.getItem(KEY) ? { Authorization: `Bearer ${sessionStorage.getItem(KEY)}` } : {});

/** Why a request failed; `status` is 0 if the server did not answer. */
export class Problem extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export async function call(path, { method = "GET", json, form, signal, as = "json" } = {}) {
  const options = { method, signal, headers: headers() };
  if (json !== undefined) {
    options.body = JSON.stringify(json);
    options.headers["Content-Type"] = "application/json";
  } else if (form) {
    options.body = form;
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server does not answer. Is it still running?", 0);
  }
  if (!answer.ok) throw new Problem(await sentence(answer), answer.status);
  if (answer.status === 204) return null;
  return as === "response" ? answer : answer[as]();
}

async function sentence(answer) {
  const { error } = await answer.json().catch(() => ({}));
  if (typeof error === "string") return error[0].toUpperCase() + error.slice(1);
  return { 401: "This server needs a key.", 413: "This file is too large for the server.", 429: "Too many requests. Wait a moment." }[answer.status]
    ?? `The server could not do that (${answer.status}).`;
}

export const search = (options, file, signal) => {
  if (!file) return call("search", { method: "POST", json: options, signal });
  const form = new FormData();
  form.append("image", file, file.name || "pasted.png");
  form.append("options", JSON.stringify(options));
  return call("search", { method: "POST", form, signal });
};

export const browse = (options, signal) => call("items/browse", { method: "POST", json: options, signal });

/** Ids in lists of the length that the server accepts. */
export const inParts = (ids, most = 1000) => Array.from({ length: Math.ceil(ids.length / most) }, (_, n) => ids.slice(n * most, (n + 1) * most));

/** Items in the order of their ids; removed ones are left out. */
export async function lookup(ids) {
  const items = [];
  for (const part of inParts(ids)) items.push(...(await lookupPart(part)));
  return items;
}

async function lookupPart(ids) {
  try {
    return (await call("items/lookup", { method: "POST", json: { ids } })).items;
  } catch (error) {
    if (error.status !== 404) throw error;
    if (ids.length === 1) return [];
    const half = Math.ceil(ids.length / 2); // one of them was removed
    return [...(await lookupPart(ids.slice(0, half))), ...(await lookupPart(ids.slice(half)))];
  }
}

// A server with a key does not give a picture by its address alone.
const pictures = new Map();
const MOST_PICTURES = 600;

export async function pictureOf(id) {
  const path = `items/${id}/thumbnail`;
  if (!sessionStorage.getItem(KEY)) return path;
  if (!pictures.has(id)) {
    pictures.set(id, call(path, { as: "blob" }).then((blob) => URL.createObjectURL(blob)));
    if (pictures.size > MOST_PICTURES) {
      const [oldest, url] = pictures.entries().next().value;
      pictures.delete(oldest);
      url.then((old) => URL.revokeObjectURL(old), () => {});
    }
  }
  return pictures.get(id);
}

/** Show an item's picture in an <img>. */
export function show(image, id) {
  pictureOf(id).then((url) => { image.src = url; }, () => image.classList.add("broken"));
  return image;
}
