// What was found, as photos: a grid that can be walked with the arrow keys, a page at a time.

import { $, $$, button, h, icon, number, plural } from "./dom.js";
import { call, search, show } from "./api.js";
import { facts, fileName, nameOf, shortPath } from "./facts.js";
import { correct, detail, findKin, labelled, less, level, meter, more, percent } from "./detail.js";
import { noFilters } from "./filters.js";
import { go, isAsked, options, uploaded } from "./state.js";
import { selected, toggle } from "./selection.js";

const PAGE = 48;
let hits = [];
let running = null;
let shownFor = null;

export const currentHits = () => hits;

function tile(hit, place) {
  const name = nameOf(hit);
  const said = [name, hit.confidence === null ? `similarity ${hit.score.toFixed(2)}` : `${percent(hit.confidence)} sure`, fileName(hit.path)].filter(Boolean).join(", ");
  return h("li", { class: selected.has(hit.id) ? "tile picked" : "tile", "data-id": hit.id, "data-place": place },
    h("button", { type: "button", class: "photo", "aria-label": said, onclick: () => detail(hits, place) }, show(h("img", { alt: "", loading: "lazy", decoding: "async" }), hit.id)),
    h("label", { class: "pick", title: "Select (x)" }, h("input", { type: "checkbox", checked: selected.has(hit.id), "aria-label": `Select ${name}`, onchange: () => toggle(hit.id) }), icon("check")),
    h("div", { class: "quick" },
      h("button", { type: "button", title: "Find its neighbours (n)", "aria-label": `Find the neighbours of ${name}`, onclick: () => findKin(hit.id) }, icon("kin")),
      h("button", { type: "button", title: "More like this (+)", "aria-label": `More like this ${name}`, onclick: () => more(hit.id) }, icon("plus")),
      h("button", { type: "button", title: "Less like this (−)", "aria-label": `Less like this ${name}`, onclick: () => less(hit.id) }, icon("minus"))),
    h("div", { class: "caption" },
      h("p", { class: "line" }, h("span", { class: "name", title: name }, labelled(hit)),
        h("span", { class: `percent ${hit.confidence === null ? "" : level(hit.confidence)}` }, hit.confidence === null ? hit.score.toFixed(2) : percent(hit.confidence))),
      meter(hit),
      hit.path ? h("p", { class: "path", title: hit.path }, shortPath(hit.path)) : null));
}

const grid = () => $("#results-body .grid:not(.waiting)");

/** One tile is in the order of Tab at a time; arrow keys choose which. */
function current(place, focus = true) {
  for (const each of $$(".tile", grid())) {
    const is = Number(each.dataset.place) === place;
    for (const control of $$("button, input", each)) control.tabIndex = is ? 0 : -1;
    if (is && focus) {
      $(".photo", each).focus();
      each.scrollIntoView({ block: "nearest" });
    }
  }
}

function walk(event) {
  const here = event.target.closest?.(".tile");
  if (!here || event.ctrlKey || event.metaKey || event.altKey) return;
  const place = Number(here.dataset.place);
  const across = getComputedStyle(grid()).gridTemplateColumns.split(" ").length;
  const to = { ArrowRight: place + 1, ArrowLeft: place - 1, ArrowDown: place + across, ArrowUp: place - across, Home: 0, End: hits.length - 1 }[event.key];
  const act = { n: () => findKin(hits[place].id), "+": () => more(hits[place].id), "-": () => less(hits[place].id), x: () => toggle(hits[place].id),
    c: () => !facts.about.read_only && correct(hits[place]) }[event.key];
  if (to !== undefined) { if (hits[to]) current(to); } else if (act) act();
  else return;
  event.preventDefault();
  event.stopPropagation();
}

function append(found) {
  const first = hits.length;
  hits = [...hits, ...found];
  grid().append(...found.map((hit, n) => tile(hit, first + n)));
  if (first === 0) current(0, false);
  else for (const each of $$(".tile", grid()).slice(first)) for (const control of $$("button, input", each)) control.tabIndex = -1;
}

function redraw() {
  const focused = document.activeElement?.closest?.(".tile")?.dataset.place;
  for (const old of grid() ? $$(".tile", grid()) : []) {
    const place = Number(old.dataset.place);
    old.replaceWith(tile(hits[place], place));
  }
  if (grid() && hits.length) current(Number(focused ?? 0), focused !== undefined);
}

const waiting = () => h("ul", { class: "grid waiting", "aria-hidden": "true" }, Array.from({ length: 12 }, () => h("li", { class: "tile" }, h("div", { class: "photo" }), h("div", { class: "caption" }, h("p", {})))));

function said(title, note) {
  $("#results-title").textContent = title;
  $("#results-note").textContent = note;
}

const summary = (answer) => {
  const sure = hits.filter((hit) => hit.confidence >= 0.8).length;
  const shown = `${number(hits.length)}${answer.more ? "+" : ""} ${hits.length === 1 ? "photo" : "photos"}`;
  return `${shown}${sure ? `, ${number(sure)} of them surely of its class` : ""} · ${Math.max(1, Math.round(answer.seconds * 1000))} ms`;
};

/** What went wrong, and what to do: another photo where it is the photo, and else the same again. */
export function problem(error, again, photo = false) {
  const gone = error.status === 0;
  const unusable = photo && error.status >= 400 && error.status < 500 && error.status !== 429;
  return h("div", { class: "empty failed", role: "alert" }, icon("alert"),
    h("h2", {}, gone ? "The server is gone" : unusable ? "This photo cannot be searched for" : "That did not work"),
    h("p", {}, error.message),
    h("div", { class: "actions" },
      unusable ? null : button("Try again", "again", again, { class: "button strong", id: "retry" }),
      gone ? null : button("Choose another", "image", () => $("#file").click(), { class: unusable ? "button strong" : "button", id: "choose-another" })));
}

async function fetchPage(state, offset) {
  running?.abort();
  running = new AbortController();
  const most = facts.about.limits?.k ?? PAGE;
  return search({ ...options(state), k: Math.min(PAGE, most), offset }, uploaded(state.upload)?.file, running.signal);
}

/** Search for what the state asks, or show where to begin; gives the answer of the first page. */
export async function drawResults(state) {
  const body = $("#results-body");
  const asked = JSON.stringify({ ...state, view: null });
  if (asked === shownFor) return undefined;
  shownFor = asked;
  hits = [];
  $("#more").hidden = true;
  if (!isAsked(state)) {
    running?.abort();
    said("", "");
    await start(state);
    dispatchEvent(new Event("nearkin:hits"));
    return null;
  }
  said("Near kin", "Searching …");
  body.setAttribute("aria-busy", "true");
  body.replaceChildren(waiting());
  try {
    const answer = await fetchPage(state, 0);
    body.replaceChildren(h("ul", { class: "grid", onkeydown: walk }));
    if (answer.hits.length) {
      append(answer.hits);
      said("Near kin", summary(answer));
    } else {
      said("Near kin", "Nothing found");
      const filtered = state.labels.length || Object.keys(state.columns).length || state.min;
      body.replaceChildren(h("div", { class: "empty" }, icon("search"), h("h2", {}, "Nothing is that near"),
        h("p", {}, filtered ? "No photo meets these filters." : "The index holds no other photo."),
        filtered ? button("Clear filters", null, () => go(noFilters)) : null));
    }
    $("#more").hidden = !answer.more;
    $("#more").onclick = () => nextPage(state);
    dispatchEvent(new Event("nearkin:hits"));
    return answer;
  } catch (error) {
    if (error.name === "AbortError") return undefined;
    shownFor = null;
    said("", "");
    body.replaceChildren(problem(error, () => dispatchEvent(new Event("nearkin:state")), state.upload !== null));
    dispatchEvent(new Event("nearkin:hits"));
    throw error;
  } finally {
    body.removeAttribute("aria-busy");
  }
}

async function nextPage(state) {
  const first = hits.length;
  $("#more").disabled = true;
  try {
    const answer = await fetchPage(state, first);
    append(answer.hits);
    said("Near kin", summary(answer));
    $("#more").hidden = !answer.more;
    if (answer.hits.length) current(first);
    dispatchEvent(new Event("nearkin:hits"));
  } catch (error) {
    if (error.name !== "AbortError") $("#results-note").textContent = error.message;
  } finally {
    $("#more").disabled = false;
  }
}

async function start(state) {
  const { about } = facts;
  const body = $("#results-body");
  if (!about.items) {
    body.replaceChildren(h("div", { class: "empty" }, icon("image"), h("h2", {}, "This index is empty"),
      h("p", {}, "Add photos with ", h("code", {}, "nearkin index RUN FOLDER -o INDEX"), ", or one by one from here.")));
    return;
  }
  const sample = h("ul", { class: "samples" });
  body.replaceChildren(
    h("div", { class: "hero" },
      h("h1", {}, "Find its near kin"),
      h("p", {}, state.lost ? "A photo does not outlive a reload of the page. Choose it again." : `Drop a photo anywhere, paste one, or choose a file: the nearest of ${plural(about.items, "photo", "photos")}${about.labels.length ? ` of ${plural(about.labels.length, "label", "labels")}` : ""} appear.`),
      button("Choose a photo", "image", () => $("#file").click(), { class: "button strong large", id: "choose" })),
    h("h2", { class: "or" }, "Or begin with one of these"), sample);
  const { items } = await call("samples?n=24");
  sample.replaceChildren(...items.map((item) => h("li", {}, h("button", { type: "button", class: "photo", "data-id": item.id, title: item.label, "aria-label": `Neighbours of ${item.label ?? `item ${item.id}`}`, onclick: () => findKin(item.id) }, show(h("img", { alt: "", loading: "lazy" }), item.id)))));
}

addEventListener("nearkin:corrections", redraw);
addEventListener("nearkin:selection", () => {
  for (const each of grid() ? $$(".tile", grid()) : []) {
    const is = selected.has(Number(each.dataset.id));
    each.classList.toggle("picked", is);
    if ($(".pick input", each)) $(".pick input", each).checked = is;
  }
});
