// Results of a search or a filter: pages of photos in a grid, which arrow keys move through.

import { $, $$, button, h, icon, number, plural, toast } from "./dom.js";
import { browse, call, lookup, search, show } from "./api.js";
import { facts, fileName, shortPath } from "./facts.js";
import { correct, detail, findKin, labelled, less, level, meter, more, percent } from "./detail.js";
import { noFilters } from "./filters.js";
import { above, labelOf, nameOf, shortLabel } from "./labels.js";
import { go, isAsked, isFiltered, options, uploaded, where } from "./state.js";
import { selected, toggle } from "./selection.js";

const PAGE = 48;
const VERY_LIKELY = 0.8;
let results = []; // as the server gave them
let hits = []; // as they are shown, with the copies that a person has opened
let running = null;
let shownFor = null;

export const currentHits = () => hits;

/** The confidence of a hit, or its similarity without one; empty if nothing was searched for. */
function certainty(hit) {
  if (hit.confidence !== null) return [percent(hit.confidence), `${percent(hit.confidence)} likely of the same class`];
  return hit.score === null ? ["", ""] : [hit.score.toFixed(2), `similarity ${hit.score.toFixed(2)}`];
}

function tile(hit, at) {
  const name = nameOf(hit);
  const [figure, words] = certainty(hit);
  return h("li", { class: selected.has(hit.id) ? "tile picked" : "tile", "data-id": hit.id, "data-at": at },
    h("button", { type: "button", class: "photo", "aria-label": [name, words, fileName(hit.path)].filter(Boolean).join(", "), onclick: () => detail(hits, at) }, show(h("img", { alt: "", loading: "lazy", decoding: "async" }), hit.id)),
    h("label", { class: "pick", title: "Select (x)" }, h("input", { type: "checkbox", checked: selected.has(hit.id), "aria-label": `Select ${name}`, onchange: () => toggle(hit.id) }), icon("check")),
    h("div", { class: "quick" },
      h("button", { type: "button", title: "Find its neighbours (n)", "aria-label": `Find the neighbours of ${name}`, onclick: () => findKin(hit.id) }, icon("kin")),
      h("button", { type: "button", title: "More like this (+)", "aria-label": `More like this ${name}`, onclick: () => more(hit.id) }, icon("plus")),
      h("button", { type: "button", title: "Less like this (−)", "aria-label": `Less like this ${name}`, onclick: () => less(hit.id) }, icon("minus"))),
    h("div", { class: "caption" },
      h("p", { class: "line" }, h("span", { class: "name", title: labelOf(hit).label ?? name }, labelled(hit)),
        figure ? h("span", { class: `percent ${hit.confidence === null ? "" : level(hit.confidence)}` }, figure) : null),
      above(labelOf(hit).label, "p"),
      meter(hit),
      hit.copies > 1 ? h("button", { type: "button", class: "copies", "aria-expanded": Boolean(hit.opened), title: hit.opened ? "Show them as one photo" : "Show them all", onclick: () => openCopies(hit) }, `${hit.copies} copies`) : null,
      hit.path ? h("p", { class: "path", title: hit.path }, shortPath(hit.path)) : null));
}

const grid = () => $("#results-body .grid:not(.waiting)");
const tiles = () => (grid() ? $$(".tile", grid()) : []);

/** Tab reaches one tile; arrow keys move between tiles. */
function current(at, focus = true) {
  for (const element of tiles()) {
    const is = Number(element.dataset.at) === at;
    for (const control of $$("button, input", element)) control.tabIndex = is ? 0 : -1;
    if (is && focus) {
      $(".photo", element).focus();
      element.scrollIntoView({ block: "nearest" });
    }
  }
}

function walk(event) {
  const here = event.target.closest?.(".tile");
  if (!here || event.ctrlKey || event.metaKey || event.altKey) return;
  const at = Number(here.dataset.at);
  const across = getComputedStyle(grid()).gridTemplateColumns.split(" ").length;
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + across, ArrowUp: at - across, Home: 0, End: hits.length - 1 }[event.key];
  const { id } = hits[at];
  const act = { n: () => findKin(id), "+": () => more(id), "-": () => less(id), x: () => toggle(id), c: () => !facts.about.read_only && correct(hits[at]) }[event.key];
  if (to !== undefined) { if (hits[to]) current(to); } else if (act) act();
  else return;
  event.preventDefault();
  event.stopPropagation();
}

/** Show the copies of a photo after it, or hide them again. */
async function openCopies(hit) {
  try {
    hit.opened = hit.opened ? null : (await lookup(hit.copy_ids)).map((copy) => ({ ...copy, score: null, confidence: null }));
  } catch (error) {
    toast(error.message);
    return;
  }
  hits = results.flatMap((result) => [result, ...(result.opened ?? [])]);
  grid().replaceChildren(...hits.map(tile));
  current(hits.indexOf(hit), false);
  $(".copies", tiles()[hits.indexOf(hit)]).focus();
  dispatchEvent(new Event("nearkin:hits"));
}

function append(page) {
  const first = hits.length;
  results = [...results, ...page];
  hits = [...hits, ...page];
  grid().append(...page.map((hit, n) => tile(hit, first + n)));
  if (first === 0) current(0, false);
  else for (const element of tiles().slice(first)) for (const control of $$("button, input", element)) control.tabIndex = -1;
}

function redraw() {
  const focused = document.activeElement?.closest?.(".tile")?.dataset.at;
  for (const old of tiles()) old.replaceWith(tile(hits[Number(old.dataset.at)], Number(old.dataset.at)));
  if (grid() && hits.length) current(Number(focused ?? 0), focused !== undefined);
}

const waiting = () => h("ul", { class: "grid waiting", "aria-hidden": "true" }, Array.from({ length: 12 }, () => h("li", { class: "tile" }, h("div", { class: "photo" }), h("div", { class: "caption" }, h("p", {})))));

function head(title, note) {
  $("#results-title").textContent = title;
  $("#results-note").textContent = note;
}

const title = (state) => {
  if (isAsked(state)) return "Near kin";
  return state.labels.length === 1 ? shortLabel(state.labels[0].replace(/\/$/, "")) : "Photos";
};

/** The number of photos; for a search also how many have the query's label and are very likely right. */
function summary(answer) {
  if (answer.total !== undefined) return plural(answer.total, "photo", "photos");
  const label = answer.label?.label ?? null;
  const likely = label === null ? 0 : results.filter((hit) => hit.label === label && hit.confidence >= VERY_LIKELY).length;
  const shown = `${number(results.length)}${answer.more ? "+" : ""} ${results.length === 1 ? "photo" : "photos"}`;
  return `${shown}${likely ? `, ${number(likely)} of them very likely ${shortLabel(label)}` : ""} · ${Math.max(1, Math.round(answer.seconds * 1000))} ms`;
}

/** What went wrong, and what to do: take another photo if it is the photo's fault, else try again. */
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

/** A page: `{hits, more}` and the rest of the server's answer. */
async function fetchPage(state, offset) {
  running?.abort();
  running = new AbortController();
  const page = { k: Math.min(PAGE, facts.about.limits.k), offset };
  if (isAsked(state)) return search({ ...options(state), ...page }, uploaded(state.upload)?.file, running.signal);
  const { items, total } = await browse({ where: where(state), ...page }, running.signal);
  return { hits: items.map((item) => ({ ...item, score: null, confidence: null })), more: offset + items.length < total, total };
}

/** Show the results for the state, or the start page; returns the answer for the first page. */
export async function drawResults(state) {
  const body = $("#results-body");
  const asked = JSON.stringify({ ...state, view: null });
  if (asked === shownFor) return undefined;
  shownFor = asked;
  results = [];
  hits = [];
  $("#more").hidden = true;
  if (!isAsked(state) && !isFiltered(state)) {
    running?.abort();
    head("", "");
    await start(state);
    dispatchEvent(new Event("nearkin:hits"));
    return null;
  }
  head(title(state), isAsked(state) ? "Searching …" : "");
  body.setAttribute("aria-busy", "true");
  body.replaceChildren(waiting());
  try {
    const answer = await fetchPage(state, 0);
    body.replaceChildren(h("ul", { class: "grid", onkeydown: walk }));
    if (answer.hits.length) append(answer.hits);
    else body.replaceChildren(nothing(state));
    head(title(state), answer.hits.length ? summary(answer) : "Nothing found");
    $("#more").hidden = !answer.more;
    $("#more").onclick = () => nextPage(state);
    dispatchEvent(new Event("nearkin:hits"));
    return answer;
  } catch (error) {
    if (error.name === "AbortError") return undefined;
    shownFor = null;
    head("", "");
    body.replaceChildren(problem(error, () => dispatchEvent(new Event("nearkin:state")), state.upload !== null));
    dispatchEvent(new Event("nearkin:hits"));
    throw error;
  } finally {
    body.removeAttribute("aria-busy");
  }
}

function nothing(state) {
  const filtered = isFiltered(state) || state.min;
  return h("div", { class: "empty" }, icon("search"), h("h2", {}, isAsked(state) ? "Nothing is that near" : "No such photo"),
    h("p", {}, filtered ? "No photo meets these filters." : "The index holds no other photo."),
    filtered ? button("Clear filters", null, () => go(noFilters)) : null);
}

async function nextPage(state) {
  const first = hits.length;
  $("#more").disabled = true;
  try {
    const answer = await fetchPage(state, results.length);
    append(answer.hits);
    head(title(state), summary(answer));
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
      h("p", {}, state.lost ? "An uploaded photo is not kept when the page is reloaded. Choose it again." : `Drop a photo anywhere, paste one, or choose a file: the nearest of ${plural(about.items, "photo", "photos")}${about.labels.length ? ` of ${plural(about.labels.length, "label", "labels")}` : ""} appear.`),
      button("Choose a photo", "image", () => $("#file").click(), { class: "button strong large", id: "choose" })),
    h("h2", { class: "or" }, "Or begin with one of these"), sample);
  const { items } = await call("samples?n=24");
  sample.replaceChildren(...items.map((item) => h("li", {}, h("button", { type: "button", class: "photo", "data-id": item.id, title: item.label, "aria-label": `Neighbours of ${nameOf(item)}, item ${item.id}`, onclick: () => findKin(item.id) }, show(h("img", { alt: "", loading: "lazy" }), item.id)))));
}

addEventListener("nearkin:corrections", redraw);
addEventListener("nearkin:selection", () => {
  for (const element of tiles()) {
    const is = selected.has(Number(element.dataset.id));
    element.classList.toggle("picked", is);
    $(".pick input", element).checked = is;
  }
});
