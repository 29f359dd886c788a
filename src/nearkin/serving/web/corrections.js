// "This is not a …, it is a …": said here, kept by the server, downloaded as a manifest to train on.

import { $, button, h, icon, open, plural, save, toast } from "./dom.js";
import { call, inParts, show } from "./api.js";
import { canWrite, facts, fileName, labelOf, refreshCorrections } from "./facts.js";

async function correct(ids, label) {
  for (const part of inParts(ids)) await call("corrections", { method: "POST", json: { ids: part, label } });
  await refreshCorrections();
}

async function undo(id) {
  await call(`corrections/${id}`, { method: "DELETE" });
  await refreshCorrections();
}

/** Ask what photos are; `items` are the ones to show. */
export function relabel(ids, items) {
  const dialog = $("#relabel");
  const said = [...new Set(items.map((item) => labelOf(item).label).filter(Boolean))];
  const now = said.length === 1 && ids.length === items.length ? said[0] : null;
  const one = ids.length === 1;
  const input = h("input", { type: "text", id: "new-label", list: "known-labels", autocomplete: "off", required: true, placeholder: "robin" });
  const wrong = h("p", { class: "wrong", role: "alert" });
  const send = async (label) => {
    try {
      await correct(ids, label);
      dialog.close();
      const what = one ? "1 photo" : plural(ids.length, "photo", "photos");
      toast(label === null ? `${what} left out until someone knows` : `${what}: ${label}`, one ? { text: "Undo", run: () => undo(ids[0]) } : null);
    } catch (error) {
      wrong.textContent = error.message;
    }
  };
  const form = h(
    "form",
    { onsubmit: (event) => { event.preventDefault(); if (input.value.trim()) send(input.value.trim()); } },
    h("div", { class: "strip" }, items.slice(0, 8).map((item) => show(h("img", { alt: "", width: 72, height: 72 }), item.id)), ids.length > 8 ? h("span", {}, `+${ids.length - 8}`) : null),
    h("label", { for: "new-label" }, now ? `This is not a ${now}. It is a` : one ? "This is a" : "They are all"),
    input,
    wrong,
    h("div", { class: "actions" },
      h("button", { type: "submit", class: "button strong" }, one ? "Correct it" : `Correct ${ids.length}`),
      button("I do not know what", null, () => send(null), { id: "unknown-label" })),
    h("p", { class: "hint" }, "The index keeps its labels. Corrections are kept beside them and go into the manifest that you download to train again."),
  );
  open(dialog, one ? "Correct this label" : `Correct ${plural(ids.length, "label", "labels")}`, form);
  input.focus();
}

export function showCorrections() {
  const dialog = $("#corrections");
  const draw = () => {
    const all = [...facts.corrections.values()].sort((a, b) => String(b.time).localeCompare(String(a.time)) || b.id - a.id);
    const failed = (error) => toast(error.message);
    const list = h("ul", { class: "corrected" }, all.map((one) =>
      h("li", { "data-id": one.id },
        show(h("img", { alt: "", width: 56, height: 56 }), one.id),
        h("div", {},
          h("p", {}, h("s", {}, one.was ?? "no label"), " ", h("span", { class: "arrow", "aria-label": "is" }, "→"), " ", one.label === null ? h("em", {}, "unknown") : h("strong", {}, one.label)),
          h("p", { class: "path" }, fileName(one.path) || `item ${one.id}`)),
        canWrite() ? h("button", { type: "button", class: "plain icon", "aria-label": `Undo the correction of ${fileName(one.path) || one.id}`, title: "Undo", onclick: () => undo(one.id).catch(failed) }, icon("undo")) : null)));
    const download = async () => save(await call("corrections.csv", { as: "blob" }), "manifest.csv", "text/csv");
    open(dialog, "Corrections",
      all.length ? list : h("div", { class: "empty" }, icon("pencil"), h("p", {}, "Nothing corrected yet. Open a photo, or select several, and say what it is.")),
      h("footer", {},
        button("Download manifest", "download", () => download().catch(failed), { class: "button strong", id: "download-manifest" }),
        h("p", { class: "hint" }, "All photos of the index with these corrections. ", h("code", {}, "nearkin train --data manifest.csv"), " learns from it.")));
  };
  draw();
  addEventListener("nearkin:corrections", draw);
  dialog.addEventListener("close", () => removeEventListener("nearkin:corrections", draw), { once: true });
}
