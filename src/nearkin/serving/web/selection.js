// Selected photos, from the results or the lasso, and actions on all of them.

import { $, button, fill, h, icon, number, plural, save, toast } from "./dom.js";
import { lookup } from "./api.js";
import { canWrite, facts } from "./facts.js";
import { labelOf } from "./labels.js";
import { relabel } from "./corrections.js";
import { go } from "./state.js";

const MOST_EXAMPLES = 50;
export const selected = new Set();

const changed = () => {
  draw();
  dispatchEvent(new Event("nearkin:selection"));
};

export function select(ids, { add = false } = {}) {
  if (!add) selected.clear();
  for (const id of ids) selected.add(id);
  changed();
}

export function toggle(id) {
  if (!selected.delete(id)) selected.add(id);
  changed();
}

export const clear = () => select([]);

/** An even sample of a large selection: the mean of fifty is near the mean of all. */
function examples() {
  const ids = [...selected];
  const step = Math.max(1, ids.length / MOST_EXAMPLES);
  return Array.from({ length: Math.min(ids.length, MOST_EXAMPLES) }, (_, n) => ids[Math.floor(n * step)]);
}

const quoted = (value) => {
  const text = value === null || value === undefined ? "" : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

async function download() {
  const items = await lookup([...selected]);
  const columns = (facts.about.columns ?? []).map((column) => column.name);
  const rows = items
    .filter((item) => item.path && !labelOf(item).unsure)
    .map((item) => [item.path, labelOf(item).label, ...columns.map((name) => item.columns?.[name])]);
  const text = [["path", "label", ...columns], ...rows].map((row) => row.map(quoted).join(",")).join("\n");
  save(`${text}\n`, "selection.csv", "text/csv");
  const without = items.length - rows.length;
  toast(`${plural(rows.length, "photo", "photos")} in selection.csv${without ? `, ${number(without)} without a file or of unknown class left out` : ""}`);
}

function draw() {
  const bar = $("#selection");
  bar.hidden = selected.size === 0;
  document.body.classList.toggle("selecting", selected.size > 0);
  if (bar.hidden) return;
  const failed = (error) => toast(error.message);
  fill(bar,
    h("strong", { id: "selected-count" }, `${number(selected.size)} selected`),
    button("More like these", "kin", () => go({ id: null, upload: null, crop: null, like: examples(), unlike: [], view: "search" }), { id: "like-selection" }),
    canWrite() ? button("Correct", "pencil", () => lookup([...selected].slice(0, 8)).then((items) => relabel([...selected], items)).catch(failed), { id: "relabel-selection" }) : null,
    button("CSV", "download", () => download().catch(failed), { id: "download-selection", "aria-label": "Download the selection as a CSV manifest" }),
    h("button", { type: "button", class: "plain icon", id: "clear-selection", "aria-label": "Clear the selection", onclick: clear }, icon("close")),
  );
}

addEventListener("nearkin:corrections", draw);
