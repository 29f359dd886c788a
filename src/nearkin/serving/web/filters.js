// Filters: a tree of labels and ranges of columns; for a search also its confidence and only the nearest of each label.

import { $, $$, h, icon, number } from "./dom.js";
import { facts } from "./facts.js";
import { labelTree, leaves, pickedLabels, withTicked } from "./labels.js";
import { go, isAsked, read } from "./state.js";

const MOST_SHOWN = 120;
const folds = new Map(); // branches that a person has opened or closed

function drawLabels(state) {
  const text = $("#label-find").value.trim().toLowerCase();
  const ticked = new Set(pickedLabels(state.labels));
  const tree = labelTree();
  const isFlat = tree.every((node) => !node.children.length);
  if (isFlat) tree.sort((a, b) => ticked.has(b.pick) - ticked.has(a.pick));
  const named = (node) => text !== "" && node.name.toLowerCase().includes(text);
  const isWanted = (node) => leaves(node).some((label) => ticked.has(label) || label.toLowerCase().includes(text));
  const isSearched = (node) => node.children.some((child) => named(child) || isSearched(child));
  let shown = 0;

  const row = (node) => {
    if (++shown > MOST_SHOWN) return null;
    const all = leaves(node);
    const count = all.filter((label) => ticked.has(label)).length;
    const isOpen = folds.get(node.pick) ?? ((count > 0 && count < all.length) || tree.length === 1 || isSearched(node));
    const input = h("input", { type: "checkbox", class: named(node) ? "named" : null, checked: count === all.length, "data-pick": node.pick, onchange: (event) => go({ labels: withTicked(read().labels, all, event.target.checked) }) });
    input.indeterminate = count > 0 && count < all.length;
    const fold = !node.children.length ? h("span", { class: "twist" })
      : h("button", { type: "button", class: "twist", tabindex: -1, "aria-expanded": isOpen, "aria-label": node.name, onclick: () => { folds.set(node.pick, !isOpen); drawLabels(read()); } }, icon("chevron"));
    return h("li", {},
      h("div", { class: "branch" }, isFlat ? null : fold,
        h("label", { class: "check" }, input, h("span", { class: "name", title: node.pick }, node.name), h("span", { class: "n" }, number(node.items)))),
      isOpen && node.children.length ? h("ul", {}, node.children.filter(isWanted).map(row)) : null);
  };

  const focused = document.activeElement?.dataset?.pick;
  const wanted = tree.filter(isWanted);
  $("#labels").replaceChildren(...wanted.map(row).filter(Boolean));
  if (focused !== undefined) $$("#labels input").find((input) => input.dataset.pick === focused)?.focus();
  const hint = $("#labels-hint");
  hint.hidden = wanted.length > 0 && shown <= MOST_SHOWN;
  hint.textContent = wanted.length ? `and ${number(shown - MOST_SHOWN)} more: type to find them` : "No label has that in its name.";
  $("#labels-field").hidden = tree.length === 0;
}

function drawColumns(state) {
  const fields = $("#columns");
  if (fields.dataset.names !== JSON.stringify(facts.about.columns)) {
    fields.dataset.names = JSON.stringify(facts.about.columns);
    fields.replaceChildren(...facts.about.columns.map(({ name, kind, min, max }, n) =>
      kind === "number"
        ? h("fieldset", { class: "range" }, h("legend", {}, name),
            h("input", { type: "number", step: "any", placeholder: min ?? "from", "aria-label": `${name} from`, "data-column": n, "data-end": "from" }),
            h("span", {}, "to"),
            h("input", { type: "number", step: "any", placeholder: max ?? "to", "aria-label": `${name} to`, "data-column": n, "data-end": "to" }))
        : h("fieldset", {}, h("legend", {}, name), h("input", { type: "text", placeholder: "is exactly", "aria-label": `${name} is`, "data-column": n }))));
  }
  for (const input of $$("input", fields)) {
    const value = state.columns[facts.about.columns[input.dataset.column].name];
    const text = input.dataset.end ? value?.[input.dataset.end] ?? "" : value ?? "";
    if (document.activeElement !== input) input.value = text;
  }
}

function columnFilters() {
  const filters = {};
  for (const input of $$("#columns input")) {
    const text = input.value.trim();
    const { name } = facts.about.columns[input.dataset.column];
    if (text === "") continue;
    if (!input.dataset.end) filters[name] = text;
    else if (Number.isFinite(Number(text))) filters[name] = { from: null, to: null, ...filters[name], [input.dataset.end]: Number(text) };
  }
  return filters;
}

export function drawFilters(state) {
  const asked = isAsked(state);
  const least = `${Math.round(state.min * 100)}`;
  $("#sure").hidden = facts.about.confidence === null || !asked;
  $("#min").value = least;
  $("#min-text").textContent = state.min ? `${least} %` : "any";
  $("#min").setAttribute("aria-valuetext", state.min ? `${least} percent` : "any");
  $("#group").checked = state.group;
  $("#group").closest("label").hidden = facts.about.labels.length === 0 || !asked;
  drawLabels(state);
  drawColumns(state);
  const count = state.labels.length + Object.keys(state.columns).length + (asked ? Number(state.group) + Number(state.min > 0) : 0);
  $("#clear-filters").hidden = count === 0;
  $("#filter-count").hidden = count === 0;
  $("#filter-count").textContent = count;
}

export const noFilters = { labels: [], columns: {}, group: false, min: 0 };

/** Arrow keys move through the tree; left and right close and open a branch. */
function walk(event) {
  const input = document.activeElement;
  const fold = $("button.twist", input.closest(".branch") ?? event.currentTarget);
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step) {
    const all = $$("#labels input");
    const next = all.indexOf(input) + step;
    (next < 0 ? $("#label-find") : all[next])?.focus();
  } else if (fold && { ArrowRight: "false", ArrowLeft: "true" }[event.key] === fold.getAttribute("aria-expanded")) fold.click();
  else if (event.key === "ArrowLeft") $("input", input.closest("ul:not(#labels)")?.parentElement ?? input.closest("li"))?.focus();
  else return;
  event.preventDefault();
}

export function listen() {
  $("#filters").addEventListener("submit", (event) => event.preventDefault());
  $("#filters").addEventListener("reset", (event) => { event.preventDefault(); $("#label-find").value = ""; document.activeElement?.blur(); go(noFilters); });
  $("#min").addEventListener("input", (event) => {
    $("#min-text").textContent = Number(event.target.value) ? `${event.target.value} %` : "any";
  });
  $("#min").addEventListener("change", (event) => go({ min: event.target.value / 100 }));
  $("#group").addEventListener("change", (event) => go({ group: event.target.checked }));
  $("#columns").addEventListener("change", () => go({ columns: columnFilters() }));
  $("#label-find").addEventListener("input", () => { folds.clear(); drawLabels(read()); });
  $("#label-find").addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      ($("#labels input.named:not(:checked)") ?? $("#labels input:not(:checked)"))?.click();
    } else if (event.key === "ArrowDown") {
      event.preventDefault();
      $("#labels input")?.focus();
    } else if (event.key === "Escape") {
      if (event.target.value) { event.target.value = ""; drawLabels(read()); event.stopPropagation(); } else event.target.blur();
    }
  });
  $("#labels").addEventListener("keydown", walk);
  $("#fold").addEventListener("click", () => {
    const isOpen = $("#side").classList.toggle("open");
    $("#fold").setAttribute("aria-expanded", isOpen);
  });
}
