// The query: an uploaded photo, a part of it, an item of the index, or examples.

import { $, button, h, icon, open, plural, toast } from "./dom.js";
import { call, lookup, show } from "./api.js";
import { boxed } from "./box.js";
import { canWrite, facts, fileName, refresh } from "./facts.js";
import { above, nameOf, resolve, shortLabel } from "./labels.js";
import { percent } from "./detail.js";
import { go, isAsked, read, remember, uploaded } from "./state.js";

let drawnFor = null;
let guess = null; // the label of the uploaded photo by its neighbours, if the index has confidences

/** Search for a file if it can be an image. */
export function take(file) {
  if (!file) return;
  const most = facts.about.limits?.bytes;
  if (file.type && !file.type.startsWith("image/")) {
    refuse(`${file.name || "That"} is no image. Choose a photo: JPEG, PNG, WebP, …`);
  } else if (most && file.size > most) {
    refuse(`${file.name || "That photo"} has ${(file.size / 1e6).toFixed(1)} MB, and this server takes ${(most / 1e6).toFixed(0)} MB. Choose a smaller one.`);
  } else {
    refuse("");
    go({ upload: remember(file), id: null, crop: null, like: [], unlike: [] });
  }
}

export function refuse(text) {
  const notice = $("#notice");
  notice.hidden = !text;
  notice.replaceChildren(icon("alert"), h("p", {}, text), h("button", { type: "button", class: "plain icon", "aria-label": "Dismiss", onclick: () => { notice.hidden = true; } }, icon("close")));
}

export function drawQuery(state) {
  const asked = isAsked(state);
  $("#query").hidden = !asked;
  document.body.classList.toggle("asking", asked);
  const key = JSON.stringify([state.id, state.upload, state.crop]);
  if (key !== drawnFor) {
    drawnFor = key;
    $("#side").scrollTo({ top: 0 });
    $("#verdict").replaceChildren();
    picture(state);
  }
  actions(state);
  chips(state);
}

function picture(state) {
  const box = $("#query-picture");
  if (state.upload) {
    const { file, url } = uploaded(state.upload);
    const image = h("img", { src: url, alt: file.name || "your photo", draggable: "false" });
    const frame = boxed(image, state.crop, (crop) => go({ crop }));
    image.addEventListener("error", () => frame.replaceWith(h("div", { class: "no-preview" }, icon("image"), h("p", {}, file.name || "photo"))));
    box.replaceChildren(frame);
  } else if (state.id !== null) {
    const name = h("p", { class: "of" }, "Neighbours of an item");
    box.replaceChildren(h("div", { class: "frame still" }, show(h("img", { alt: "the item searched for" }), state.id)), name);
    lookup([state.id]).then(([item]) => { if (item) name.replaceChildren("Neighbours of ", h("strong", {}, nameOf(item)), h("span", { class: "path" }, fileName(item.path))); }, () => {});
  } else {
    box.replaceChildren(h("p", { class: "of" }, icon("kin"), plural(state.like.length, "example", "examples")));
  }
}

function actions(state) {
  const whole = [0.2, 0.2, 0.6, 0.6];
  $("#query-actions").replaceChildren(
    button("Another", "image", () => $("#file").click(), { class: "button small", id: "another", title: "Choose another photo (o)" }),
    ...(state.upload
      ? [state.crop ? button("Whole", "crop", () => go({ crop: null }), { class: "button small", id: "whole" }) : button("Part", "crop", () => { go({ crop: whole }); $("#query .box")?.focus(); }, { class: "button small", id: "part" })]
      : []),
    ...(state.upload && canWrite() ? [button("Add", "add", () => add(state), { class: "button small", id: "add-photo", title: "Add this photo to the index" })] : []),
    h("button", { type: "button", class: "plain icon", "aria-label": "Clear the query", title: "Clear", id: "clear-query", onclick: () => go({ id: null, upload: null, crop: null, like: [], unlike: [] }) }, icon("close")),
  );
}

function chips(state) {
  const chip = (how, id) => h("li", { class: how },
    show(h("img", { alt: "", width: 28, height: 28 }), id), h("span", {}, how === "like" ? "more" : "less"),
    h("button", { type: "button", "aria-label": `Without this ${how === "like" ? "“more like this”" : "“less like this”"}`, onclick: () => { const now = read(); go({ [how]: now[how].filter((other) => other !== id) }); } }, icon("close")));
  const most = 12;
  const rest = Math.max(0, state.like.length - most);
  $("#chips").replaceChildren(...state.like.slice(0, most).map((id) => chip("like", id)), ...(rest ? [h("li", { class: "rest" }, `+${rest}`)] : []), ...state.unlike.map((id) => chip("unlike", id)));
}

export function drawVerdict(state, answer) {
  const { label = null, confidence = null } = answer?.label ?? {};
  const unsure = label !== null && confidence === null; // an index without confidences has a label for every photo
  guess = unsure ? null : label;
  if (!answer?.label) { $("#verdict").replaceChildren(); return; }
  const words = unsure ? "Nearest class; how sure is not known" : state.crop ? "This part looks like" : "Looks like";
  const subject = h("span", {}, words);
  $("#verdict").replaceChildren(label === null
    ? h("p", { class: "verdict none" }, subject, h("strong", {}, "none of the classes here"))
    : h("p", { class: unsure ? "verdict none" : "verdict" }, subject, h("strong", {}, shortLabel(label)), unsure ? null : h("em", {}, percent(confidence)), above(label)));
}

function add(state) {
  const dialog = $("#add");
  const { file, url } = uploaded(state.upload);
  const input = h("input", { type: "text", id: "add-label", list: "known-labels", autocomplete: "off", placeholder: "no label", value: guess ?? "" });
  const wrong = h("p", { class: "wrong", role: "alert" });
  const send = async (event) => {
    event.preventDefault();
    const form = new FormData();
    form.append("image", file, file.name || "pasted.png");
    if (input.value.trim()) form.append("label", resolve(input.value.trim()));
    try {
      const { id, added } = await call("items", { method: "POST", form });
      dialog.close();
      toast(added ? `Added as item ${id}` : `It was there already, as item ${id}`, { text: "Show", run: () => go({ id, upload: null, crop: null, like: [], unlike: [] }) });
      await refresh();
      dispatchEvent(new Event("nearkin:facts"));
    } catch (error) {
      wrong.textContent = error.message;
    }
  };
  open(dialog, "Add to the index", h("form", { onsubmit: send },
    h("div", { class: "strip" }, h("img", { src: url, alt: "", width: 72, height: 72 })),
    h("label", { for: "add-label" }, "Its label"), input, wrong,
    h("div", { class: "actions" }, h("button", { type: "submit", class: "button strong" }, "Add photo"))));
  input.focus();
  input.select();
}
