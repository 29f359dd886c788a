// What may be among the results: labels, ranges of columns, how sure, one of each label.

import { $, h, number } from "./dom.js";
import { facts } from "./facts.js";
import { go, read } from "./state.js";

const MOST_SHOWN = 120;

function drawLabels(state) {
  const all = facts.about.labels;
  const wanted = $("#label-find").value.trim().toLowerCase();
  const picked = new Set(state.labels);
  const found = all.filter(({ label }) => picked.has(label) || label.toLowerCase().includes(wanted));
  found.sort((a, b) => picked.has(b.label) - picked.has(a.label));
  const focused = document.activeElement?.dataset?.label;
  $("#labels").replaceChildren(...found.slice(0, MOST_SHOWN).map(({ label, items }) =>
    h("li", {}, h("label", { class: "check" },
      h("input", { type: "checkbox", checked: picked.has(label), "data-label": label, onchange: (event) => pick(label, event.target.checked) }),
      h("span", { class: "name", title: label }, label), h("span", { class: "n" }, number(items))))));
  if (focused !== undefined) [...$("#labels").querySelectorAll("input")].find((input) => input.dataset.label === focused)?.focus();
  const hidden = found.length - MOST_SHOWN;
  const hint = $("#labels-hint");
  hint.hidden = found.length > 0 && hidden <= 0;
  hint.textContent = found.length ? `and ${number(hidden)} more: type to find them` : "No label has that in its name.";
  $("#labels-field").hidden = all.length === 0;
}

function pick(label, is) {
  const labels = read().labels.filter((each) => each !== label);
  go({ labels: is ? [...labels, label] : labels });
}

function drawColumns(state) {
  const place = $("#columns");
  if (place.dataset.names !== JSON.stringify(facts.about.columns)) {
    place.dataset.names = JSON.stringify(facts.about.columns);
    place.replaceChildren(...facts.about.columns.map(({ name, kind, min, max }, n) =>
      kind === "number"
        ? h("fieldset", { class: "range" }, h("legend", {}, name),
            h("input", { type: "number", step: "any", placeholder: min ?? "from", "aria-label": `${name} from`, "data-column": n, "data-end": "from" }),
            h("span", {}, "to"),
            h("input", { type: "number", step: "any", placeholder: max ?? "to", "aria-label": `${name} to`, "data-column": n, "data-end": "to" }))
        : h("fieldset", {}, h("legend", {}, name), h("input", { type: "text", placeholder: "is exactly", "aria-label": `${name} is`, "data-column": n }))));
  }
  for (const input of place.querySelectorAll("input")) {
    const value = state.columns[facts.about.columns[input.dataset.column].name];
    const text = input.dataset.end ? value?.[input.dataset.end] ?? "" : value ?? "";
    if (document.activeElement !== input) input.value = text;
  }
}

function columnsSaid() {
  const said = {};
  for (const input of $("#columns").querySelectorAll("input")) {
    const text = input.value.trim();
    const { name } = facts.about.columns[input.dataset.column];
    if (text === "") continue;
    if (!input.dataset.end) said[name] = text;
    else if (Number.isFinite(Number(text))) said[name] = { from: null, to: null, ...said[name], [input.dataset.end]: Number(text) };
  }
  return said;
}

export function drawFilters(state) {
  const calibrated = facts.about.calibrated;
  $("#sure").hidden = !calibrated;
  $("#min").value = state.min * 100;
  $("#min-said").textContent = state.min ? `${Math.round(state.min * 100)} %` : "any";
  $("#min").setAttribute("aria-valuetext", state.min ? `${Math.round(state.min * 100)} percent` : "any");
  $("#group").checked = state.group;
  $("#group").closest("label").hidden = facts.about.labels.length === 0;
  drawLabels(state);
  drawColumns(state);
  const count = state.labels.length + Object.keys(state.columns).length + Number(state.group) + Number(state.min > 0);
  $("#clear-filters").hidden = count === 0;
  $("#filter-count").hidden = count === 0;
  $("#filter-count").textContent = count;
}

export const noFilters = { labels: [], columns: {}, group: false, min: 0 };

export function listen() {
  $("#filters").addEventListener("submit", (event) => event.preventDefault());
  $("#filters").addEventListener("reset", (event) => { event.preventDefault(); $("#label-find").value = ""; document.activeElement?.blur(); go(noFilters); });
  $("#min").addEventListener("input", (event) => {
    $("#min-said").textContent = Number(event.target.value) ? `${event.target.value} %` : "any";
  });
  $("#min").addEventListener("change", (event) => go({ min: event.target.value / 100 }));
  $("#group").addEventListener("change", (event) => go({ group: event.target.checked }));
  $("#columns").addEventListener("change", () => go({ columns: columnsSaid() }));
  $("#label-find").addEventListener("input", () => drawLabels(read()));
  $("#label-find").addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      $("#labels input:not(:checked)")?.click();
    } else if (event.key === "ArrowDown") {
      event.preventDefault();
      $("#labels input")?.focus();
    } else if (event.key === "Escape") {
      if (event.target.value) { event.target.value = ""; drawLabels(read()); event.stopPropagation(); } else event.target.blur();
    }
  });
  $("#labels").addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = [...$("#labels").querySelectorAll("input")];
    const next = all.indexOf(document.activeElement) + step;
    (next < 0 ? $("#label-find") : all[next])?.focus();
  });
  $("#fold").addEventListener("click", () => {
    const isOpen = $("#side").classList.toggle("open");
    $("#fold").setAttribute("aria-expanded", isOpen);
  });
}
