// The state of the page is in the address, so back, forward, reload and copied links work.

import { pickedLabels } from "./labels.js";

/** Uploaded pictures of this visit by number, as an address cannot hold a file. */
const uploads = new Map();

export function remember(file) {
  const key = String(uploads.size + 1);
  uploads.set(key, { file, url: URL.createObjectURL(file) });
  return key;
}

export const uploaded = (key) => uploads.get(key) ?? null;

const list = (text) => (text ? text.split(",").map(Number).filter(Number.isInteger) : []);
const range = (text) => {
  const [from, to] = text.split("..").map((end) => (end === "" || end === undefined ? null : Number(end)));
  return { from, to: to ?? null };
};

/** `{view, id, upload, crop, like, unlike, labels, columns, group, min}`; the label "Fruit/" is all below Fruit. */
export function read(hash = location.hash) {
  const address = new URLSearchParams(hash.replace(/^#/, ""));
  const columns = {};
  for (const [name, value] of address) {
    if (name.startsWith("range.")) columns[name.slice(6)] = range(value);
    if (name.startsWith("is.")) columns[name.slice(3)] = value;
  }
  const crop = (address.get("crop") ?? "").split(",").map(Number);
  const upload = address.get("photo");
  return {
    view: address.get("view") === "map" ? "map" : "search",
    id: /^\d+$/.test(address.get("id") ?? "") ? Number(address.get("id")) : null,
    upload: uploads.has(upload) ? upload : null,
    lost: upload !== null && !uploads.has(upload),
    crop: crop.length === 4 && crop.every(Number.isFinite) ? crop : null,
    like: list(address.get("like")),
    unlike: list(address.get("unlike")),
    labels: address.getAll("label"),
    columns,
    group: address.get("group") === "label",
    min: Math.min(0.95, Math.max(0, Number(address.get("min")) || 0)),
  };
}

export function write(state) {
  const address = new URLSearchParams();
  if (state.view === "map") address.set("view", "map");
  if (state.id !== null) address.set("id", state.id);
  if (state.upload) address.set("photo", state.upload);
  if (state.upload && state.crop) address.set("crop", state.crop.map((share) => share.toFixed(4)).join(","));
  if (state.like.length) address.set("like", state.like.join(","));
  if (state.unlike.length) address.set("unlike", state.unlike.join(","));
  for (const label of state.labels) address.append("label", label);
  for (const [name, value] of Object.entries(state.columns)) {
    if (typeof value === "string") address.set(`is.${name}`, value);
    else address.set(`range.${name}`, `${value.from ?? ""}..${value.to ?? ""}`);
  }
  if (state.group) address.set("group", "label");
  if (state.min) address.set("min", state.min);
  return `#${address}`;
}

/** Change the state; `replace` makes no step in the history, for instance while a slider moves. */
export function go(change, replace = false) {
  const hash = write({ ...read(), ...change });
  if (hash !== (location.hash || "#")) history[replace ? "replaceState" : "pushState"](null, "", hash);
  dispatchEvent(new Event("nearkin:state"));
}

/** Whether there is a query; with a filter alone the index is browsed. */
export const isAsked = (state) => state.id !== null || state.upload !== null || state.like.length > 0;
export const isFiltered = (state) => state.labels.length > 0 || Object.keys(state.columns).length > 0;

export const where = (state) => ({ ...(state.labels.length ? { label: pickedLabels(state.labels) } : {}), ...state.columns });

/** The options of a search, without paging. */
export function options(state) {
  const asked = {};
  if (state.id !== null) asked.id = state.id;
  if (state.upload && state.crop) asked.crop = state.crop;
  if (state.like.length) asked.like = state.like;
  if (state.unlike.length) asked.unlike = state.unlike;
  if (isFiltered(state)) asked.where = where(state);
  if (state.group) asked.group_by = "label";
  if (state.min) asked.min_confidence = state.min;
  return asked;
}
