// What is being looked at lives in the address, so that back, forward, reload and a copied link all work.

/** Pictures of this visit by number: a file itself cannot stand in an address. */
const uploads = new Map();

export function remember(file) {
  const own = String(uploads.size + 1);
  uploads.set(own, { file, url: URL.createObjectURL(file) });
  return own;
}

export const uploaded = (own) => uploads.get(own) ?? null;

const list = (text) => (text ? text.split(",").map(Number).filter(Number.isInteger) : []);
const range = (text) => {
  const [from, to] = text.split("..").map((end) => (end === "" || end === undefined ? null : Number(end)));
  return { from, to: to ?? null };
};

/** `{view, id, upload, crop, like, unlike, labels, columns, group, min}` */
export function read(hash = location.hash) {
  const said = new URLSearchParams(hash.replace(/^#/, ""));
  const columns = {};
  for (const [name, value] of said) {
    if (name.startsWith("range.")) columns[name.slice(6)] = range(value);
    if (name.startsWith("is.")) columns[name.slice(3)] = value;
  }
  const crop = (said.get("crop") ?? "").split(",").map(Number);
  const upload = said.get("photo");
  return {
    view: said.get("view") === "map" ? "map" : "search",
    id: /^\d+$/.test(said.get("id") ?? "") ? Number(said.get("id")) : null,
    upload: uploads.has(upload) ? upload : null,
    lost: upload !== null && !uploads.has(upload),
    crop: crop.length === 4 && crop.every(Number.isFinite) ? crop : null,
    like: list(said.get("like")),
    unlike: list(said.get("unlike")),
    labels: said.getAll("label"),
    columns,
    group: said.get("group") === "label",
    min: Math.min(0.95, Math.max(0, Number(said.get("min")) || 0)),
  };
}

export function write(state) {
  const said = new URLSearchParams();
  if (state.view === "map") said.set("view", "map");
  if (state.id !== null) said.set("id", state.id);
  if (state.upload) said.set("photo", state.upload);
  if (state.upload && state.crop) said.set("crop", state.crop.map((share) => share.toFixed(4)).join(","));
  if (state.like.length) said.set("like", state.like.join(","));
  if (state.unlike.length) said.set("unlike", state.unlike.join(","));
  for (const label of state.labels) said.append("label", label);
  for (const [name, value] of Object.entries(state.columns)) {
    if (typeof value === "string") said.set(`is.${name}`, value);
    else said.set(`range.${name}`, `${value.from ?? ""}..${value.to ?? ""}`);
  }
  if (state.group) said.set("group", "label");
  if (state.min) said.set("min", state.min);
  return `#${said}`;
}

/** Go on to another state; `replace` where it is not worth a step back, as while a slider moves. */
export function go(change, replace = false) {
  const hash = write({ ...read(), ...change });
  if (hash !== (location.hash || "#")) history[replace ? "replaceState" : "pushState"](null, "", hash);
  dispatchEvent(new Event("nearkin:state"));
}

export const isAsked = (state) => state.id !== null || state.upload !== null || state.like.length > 0;

/** The options of a search, without paging. */
export function options(state) {
  const where = {};
  if (state.labels.length) where.label = state.labels;
  Object.assign(where, state.columns);
  const asked = {};
  if (state.id !== null) asked.id = state.id;
  if (state.upload && state.crop) asked.crop = state.crop;
  if (state.like.length) asked.like = state.like;
  if (state.unlike.length) asked.unlike = state.unlike;
  if (Object.keys(where).length) asked.where = where;
  if (state.group) asked.group_by = "label";
  if (state.min) asked.min_confidence = state.min;
  return asked;
}
