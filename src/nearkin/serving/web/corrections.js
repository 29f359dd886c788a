// Corrections of labels: made here, stored by the server, downloaded as a manifest for training.

import { $, button, h, icon, open, plural, save, toast } from "./dom.js";
import { call, inParts, show } from "./api.js";
import { canWrite, facts, fileName, refreshCorrections } from "./facts.js";
import { above, labelOf, resolve, shortLabel } from "./labels.js";

async function correct(ids, label) {
  for (const part of inParts(ids)) await call("corrections", { method: "POST", json: { ids: part, label } });
  await refreshCorrections();
}

async function undo(id) {
  await call(`corrections/${id}`, { method: "DELETE" });
  await refreshCorrections();
}

/** Ask for the right label of `items`. */
export function relabel(ids, items) {
  const dialog = $("#relabel");
  const labels = [...new Set(items.map((item) => labelOf(item).label).filter(Boolean))];
  const now = labels.length === 1 && ids.length === items.length ? labels[0] : null;
  const one = ids.length === 1;
  const input = h("input", { type: "text", id: "new-label", list: "known-labels", autocomplete: "off", required: true, placeholder: "type or choose a label" });
  const wrong = h("p", { class: "wrong", role: "alert" });
  const send = async (label) => {
    try {
      await correct(ids, label);
      dialog.close();
      const what = one ? "1 photo" : plural(ids.length, "photo", "photos");
      toast(label === null ? `${what} left out until someone knows` : `${what}: ${shortLabel(label)}`, one ? { text: "Undo", run: () => undo(ids[0]) } : null);
    } catch (error) {
      wrong.textContent = error.message;
    }
  };
  const form = h(
    "form",
    { onsubmit: (event) => { event.preventDefault(); if (input.value.trim()) send(resolve(input.value.trim())); } },
    h("div", { class: "strip" }, items.slice(0, 8).map((item) => show(h("img", { alt: "", width: 72, height: 72 }), item.id)), ids.length > 8 ? h("span", {}, `+${ids.length - 8}`) : null),
    h("label", { for: "new-label" }, now ? `Instead of “${shortLabel(now)}”` : one ? "Its label" : "The label of all of them"),
    input,
    wrong,
    h("div", { class: "actions" },
      h("button", { type: "submit", class: "button strong" }, one ? "Correct it" : `Correct ${ids.length}`),
      button("I do not know what", null, () => send(null), { id: "unknown-label" })),
    h("p", { class: "hint" }, "The index keeps its labels. Corrections are stored next to them, and go into the manifest that you download to train again."),
  );
  open(dialog, one ? "Correct this label" : `Correct ${plural(ids.length, "label", "labels")}`, form);
  input.focus();
}

export function showCorrections() {
  const dialog = $("#corrections");
  const draw = () => {
    const all = [...facts.corrections.values()].sort((a, b) => String(b.time).localeCompare(String(a.time)) || b.id - a.id);
    const failed = (error) => toast(error.message);
    const list = h("ul", { class: "corrected" }, all.map(({ id, was, label, path }) =>
      h("li", { "data-id": id },
        show(h("img", { alt: "", width: 56, height: 56 }), id),
        h("div", {},
          h("p", {}, h("s", {}, was === null ? "no label" : shortLabel(was)), " ", above(was), " ", h("span", { class: "arrow", "aria-label": "is" }, "→"), " ", label === null ? h("em", {}, "unknown") : h("strong", {}, shortLabel(label)), " ", above(label)),
          h("p", { class: "path" }, fileName(path) || `item ${id}`)),
        canWrite() ? h("button", { type: "button", class: "plain icon", "aria-label": `Undo the correction of ${fileName(path) || id}`, title: "Undo", onclick: () => undo(id).catch(failed) }, icon("undo")) : null)));
    const download = async () => save(await call("corrections.csv", { as: "blob" }), "manifest.csv", "text/csv");
    open(dialog, "Corrections",
      all.length ? list : h("div", { class: "empty" }, icon("pencil"), h("p", {}, "Nothing is corrected yet. Open a photo, or select several, and give the right label.")),
      h("footer", {},
        button("Download manifest", "download", () => download().catch(failed), { class: "button strong", id: "download-manifest" }),
        h("p", { class: "hint" }, "All photos of the index with these corrections. ", h("code", {}, "nearkin train --data manifest.csv"), " learns from it.")));
  };
  draw();
  addEventListener("nearkin:corrections", draw);
  dialog.addEventListener("close", () => removeEventListener("nearkin:corrections", draw), { once: true });
}
