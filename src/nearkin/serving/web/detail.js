// One photo: its facts, and further actions.

import { $, button, h, icon, open, toast } from "./dom.js";
import { lookup, show } from "./api.js";
import { canWrite, facts, shortPath } from "./facts.js";
import { above, labelOf, nameOf, shortLabel } from "./labels.js";
import { relabel } from "./corrections.js";
import { go, read } from "./state.js";
import { selected, toggle } from "./selection.js";

export const percent = (share) => (share === null ? "" : `${share >= 0.995 ? "> 99" : share < 0.005 ? "< 1" : Math.round(share * 100)} %`);
export const level = (share) => (share >= 0.8 ? "high" : share >= 0.5 ? "middle" : "low");

/** The confidence of a hit as a bar and a figure; without confidences its score. */
export function meter(hit) {
  if (hit.confidence === null || hit.confidence === undefined) return null;
  const bar = h("span", { class: `meter ${level(hit.confidence)}`, "aria-hidden": "true" }, h("i", {}));
  bar.firstChild.style.width = `${Math.max(2, hit.confidence * 100)}%`;
  return bar;
}

/** The last part of the label, with the old label if it was corrected. */
export function labelled(item) {
  const { label, was, unsure } = labelOf(item);
  if (unsure) return [h("s", {}, was === null ? "no label" : shortLabel(was))];
  if (was !== null && was !== label) return [h("span", { class: "corrected-label" }, shortLabel(label)), " ", h("s", {}, shortLabel(was))];
  return [label === null ? h("span", { class: "none" }, "no label") : shortLabel(label)];
}

export const findKin = (id) => go({ id, upload: null, crop: null, like: [], unlike: [], view: read().view });
export const more = (id) => example("like", id);
export const less = (id) => example("unlike", id);

function example(how, id) {
  const state = read();
  const like = state.like.filter((other) => other !== id);
  const unlike = state.unlike.filter((other) => other !== id);
  (how === "like" ? like : unlike).push(id);
  if (how === "unlike" && state.id === null && !state.upload && !like.length) {
    toast("First say what to search for: choose a photo, or “more like this”.");
    return;
  }
  go({ like, unlike });
}

export const correct = (item) => relabel([item.id], [item]);

/** Show one of `items`. The keys of a photo in the grid work here too; arrows, Home and End show another one. */
export function detail(items, at) {
  const dialog = $("#detail");
  const item = items[at];
  const { label } = labelOf(item);
  const to = (next) => items[next] && next !== at && detail(items, next);
  const act = (run) => () => { dialog.close(); run(); };
  const pick = () => { toggle(item.id); detail(items, at); };
  const columns = Object.entries(item.columns ?? {}).filter(([, value]) => value !== null && value !== "");
  const has = (value) => value !== null && value !== undefined;
  const actions = { n: act(() => findKin(item.id)), "+": act(() => more(item.id)), "-": act(() => less(item.id)), c: canWrite() ? act(() => correct(item)) : null, x: pick };
  const isInside = dialog.contains(document.activeElement) ? document.activeElement.id : null;
  open(
    dialog,
    label === null ? "No label" : nameOf(item),
    h("div", { class: "large" }, show(h("img", { alt: nameOf(item) }), item.id),
      items.length > 1 ? h("button", { type: "button", class: "step back", id: "previous-photo", "aria-label": "Previous photo", disabled: at === 0, onclick: () => to(at - 1) }, icon("chevron")) : null,
      items.length > 1 ? h("button", { type: "button", class: "step on", id: "next-photo", "aria-label": "Next photo", disabled: at === items.length - 1, onclick: () => to(at + 1) }, icon("chevron")) : null),
    h("dl", {},
      has(item.confidence) ? [h("dt", {}, "Same class"), h("dd", { class: "sure" }, meter(item), h("strong", {}, percent(item.confidence)))] : null,
      has(item.score) ? [h("dt", {}, facts.about.distance === "cosine" ? "Similarity" : "Distance"), h("dd", {}, Math.abs(item.score).toFixed(3))] : null,
      h("dt", {}, "Label"), h("dd", { id: "detail-label" }, labelled(item), " ", above(label)),
      item.path ? [h("dt", {}, "File"), h("dd", { class: "path", title: item.path }, shortPath(item.path))] : null,
      columns.map(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))]),
      h("dt", {}, "Item"), h("dd", {}, String(item.id))),
    h("div", { class: "actions stack" },
      button("Find its neighbours", "kin", actions.n, { class: "button strong", id: "find-kin" }),
      h("div", { class: "pair" },
        button("More like this", "plus", actions["+"], { id: "more-like" }),
        button("Less like this", "minus", actions["-"], { id: "less-like" })),
      h("div", { class: "pair" },
        canWrite() ? button("Correct label", "pencil", actions.c, { id: "correct-label" }) : null,
        button(selected.has(item.id) ? "Selected" : "Select", "check", pick, { "aria-pressed": selected.has(item.id), id: "select-photo" })),
      button("Show on the map", "map", act(() => { go({ view: "map" }); dispatchEvent(new CustomEvent("nearkin:locate", { detail: item.id })); }), { id: "show-on-map" })),
  );
  // The focus was lost with the old content; without it keys would reach the page behind.
  const again = isInside && $(`#${isInside}:not(:disabled)`, dialog);
  (again || dialog).focus();
  dialog.onkeydown = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const next = { ArrowLeft: at - 1, ArrowUp: at - 1, ArrowRight: at + 1, ArrowDown: at + 1, Home: 0, End: items.length - 1 }[event.key];
    const run = next === undefined ? actions[event.key] : () => to(next);
    if (!run) return;
    event.preventDefault();
    event.stopPropagation();
    run();
  };
  if (items[at + 1]) show(new Image(), items[at + 1].id);
}

/** Show an item by its id. */
export const detailOf = (id) => lookup([id]).then((items) => (items.length ? detail(items, 0) : toast("That photo has been removed.")), (error) => toast(error.message));
