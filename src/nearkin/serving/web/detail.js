// One photo: what is known of it, and where to go from it.

import { $, button, h, icon, open, toast } from "./dom.js";
import { lookup, show } from "./api.js";
import { canWrite, facts, labelOf, shortPath } from "./facts.js";
import { relabel } from "./corrections.js";
import { go, read } from "./state.js";
import { selected, toggle } from "./selection.js";

export const percent = (share) => (share === null ? "" : `${share >= 0.995 ? "> 99" : share < 0.005 ? "< 1" : Math.round(share * 100)} %`);
export const level = (share) => (share >= 0.8 ? "high" : share >= 0.5 ? "middle" : "low");

/** How sure a hit is: a bar and a figure, or the score where nothing was learned about that. */
export function meter(hit) {
  if (hit.confidence === null || hit.confidence === undefined) return null;
  const bar = h("span", { class: `meter ${level(hit.confidence)}`, "aria-hidden": "true" }, h("i", {}));
  bar.firstChild.style.width = `${Math.max(2, hit.confidence * 100)}%`;
  return bar;
}

/** The label as it stands, with what it was where it was corrected. */
export function labelled(item) {
  const { label, was, unsure } = labelOf(item);
  if (unsure) return [h("s", {}, was ?? "no label")];
  if (was !== null && was !== label) return [h("span", { class: "corrected-label" }, label), " ", h("s", {}, was)];
  return [label === null ? h("span", { class: "none" }, "no label") : label];
}

export const findKin = (id) => go({ id, upload: null, crop: null, like: [], unlike: [], view: read().view });
export const more = (id) => example("like", id);
export const less = (id) => example("unlike", id);

function example(how, id) {
  const state = read();
  const like = state.like.filter((each) => each !== id);
  const unlike = state.unlike.filter((each) => each !== id);
  (how === "like" ? like : unlike).push(id);
  if (how === "unlike" && state.id === null && !state.upload && !like.length) {
    toast("First say what to search for: choose a photo, or “more like this”.");
    return;
  }
  go({ like, unlike });
}

export const correct = (item) => relabel([item.id], [item]);

/** Show one of `items`; arrow keys go on to the next. */
export function detail(items, place) {
  const dialog = $("#detail");
  const item = items[place];
  const step = (by) => items[place + by] && detail(items, place + by);
  const act = (run) => () => { dialog.close(); run(); };
  const { label } = labelOf(item);
  const columns = Object.entries(item.columns ?? {}).filter(([, value]) => value !== null && value !== "");
  const picked = button(selected.has(item.id) ? "Selected" : "Select", "check", () => { toggle(item.id); detail(items, place); }, { "aria-pressed": selected.has(item.id) });
  open(
    dialog,
    label ?? "No label",
    h("div", { class: "large" }, show(h("img", { alt: label ?? "photo" }), item.id),
      items.length > 1 ? h("button", { type: "button", class: "step back", "aria-label": "Previous photo", disabled: place === 0, onclick: () => step(-1) }, icon("chevron")) : null,
      items.length > 1 ? h("button", { type: "button", class: "step on", "aria-label": "Next photo", disabled: place === items.length - 1, onclick: () => step(1) }, icon("chevron")) : null),
    h("dl", {},
      item.confidence !== null && item.confidence !== undefined ? [h("dt", {}, "Same class"), h("dd", { class: "sure" }, meter(item), h("strong", {}, percent(item.confidence)))] : null,
      item.score !== undefined ? [h("dt", {}, facts.about.distance === "cosine" ? "Similarity" : "Distance"), h("dd", {}, Math.abs(item.score).toFixed(3))] : null,
      h("dt", {}, "Label"), h("dd", { id: "detail-label" }, labelled(item)),
      item.path ? [h("dt", {}, "File"), h("dd", { class: "path", title: item.path }, shortPath(item.path))] : null,
      columns.map(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))]),
      h("dt", {}, "Item"), h("dd", {}, String(item.id))),
    h("div", { class: "actions stack" },
      button("Find its neighbours", "kin", act(() => findKin(item.id)), { class: "button strong", id: "find-kin" }),
      h("div", { class: "pair" },
        button("More like this", "plus", act(() => more(item.id)), { id: "more-like" }),
        button("Less like this", "minus", act(() => less(item.id)), { id: "less-like" })),
      h("div", { class: "pair" },
        canWrite() ? button("Correct label", "pencil", act(() => correct(item)), { id: "correct-label" }) : null,
        picked),
      button("Show on the map", "map", act(() => { go({ view: "map" }); dispatchEvent(new CustomEvent("nearkin:locate", { detail: item.id })); }), { id: "show-on-map" })),
  );
  dialog.onkeydown = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) { event.preventDefault(); step(by); }
  };
  if (items[place + 1]) show(new Image(), items[place + 1].id);
}

/** The same for an item of which only the id is known. */
export const detailOf = (id) => lookup([id]).then((items) => (items.length ? detail(items, 0) : toast("That photo has been removed.")), (error) => toast(error.message));
