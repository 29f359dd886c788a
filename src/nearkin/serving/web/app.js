// The gallery: the address determines what is shown, and user actions change the address.

import { $, fill, h, open, plural } from "./dom.js";
import { setKey } from "./api.js";
import { facts, refresh } from "./facts.js";
import { drawFilters, listen as listenToFilters } from "./filters.js";
import { showCorrections } from "./corrections.js";
import { drawMap } from "./map.js";
import { drawQuery, drawVerdict, refuse, take } from "./query.js";
import { drawResults, problem } from "./results.js";
import { go, read } from "./state.js";
import { clear, selected } from "./selection.js";

const KEYS = [
  ["/", "find a label"], ["o", "choose a photo"], ["Ctrl V", "search for a copied photo"],
  ["← ↑ ↓ →", "walk through the photos, move the map"], ["Enter", "open a photo"], ["n", "find its neighbours"],
  ["+ −", "more, less like this; on the map: zoom"], ["x", "select"], ["c", "correct its label"],
  ["m", "photos or map"], ["l", "on the map: lasso"], ["a", "on the map: select all in view"], ["0", "on the map: show all"],
  ["Esc", "close, clear the selection"], ["?", "these keys"],
];

async function draw() {
  const state = read();
  const onMap = state.view === "map";
  document.body.classList.toggle("on-map", onMap);
  $("#search-view").hidden = onMap;
  $("#map-view").hidden = !onMap;
  $("#view-search").setAttribute("aria-pressed", !onMap);
  $("#view-map").setAttribute("aria-pressed", onMap);
  drawQuery(state);
  drawFilters(state);
  if (onMap) drawMap();
  try {
    const answer = await drawResults(state);
    if (answer !== undefined) drawVerdict(state, answer);
  } catch (error) {
    drawVerdict(state, null);
    for (const useless of ["#part", "#whole", "#add-photo"]) $(useless)?.remove();
    if (error.status === 401) askForKey();
    else if (onMap) refuse(error.message);
  }
}

function drawAbout() {
  const { about } = facts;
  document.title = `${about.name} · nearkin`;
  fill($("#about"), h("strong", {}, about.name), h("span", {}, plural(about.items, "photo", "photos")), about.read_only ? h("span", { class: "tag" }, "read-only") : null);
  $("#known-labels").replaceChildren(...about.labels.map(({ label }) => h("option", { value: label })));
}

function countCorrections() {
  $("#corrections-count").hidden = facts.corrections.size === 0;
  $("#corrections-count").textContent = facts.corrections.size;
}

function help() {
  open($("#help"), "Keyboard shortcuts", h("dl", { class: "keys" }, KEYS.map(([key, does]) => [h("dt", {}, key.split(" ").map((part) => h("kbd", {}, part))), h("dd", {}, does)])));
}

function askForKey() {
  const dialog = $("#key");
  const input = h("input", { type: "password", id: "api-key", autocomplete: "off", required: true });
  open(dialog, "This server needs a key", h("form", { onsubmit: (event) => { event.preventDefault(); setKey(input.value); dialog.close(); begin(); } },
    h("label", { for: "api-key" }, "Key"), input, h("p", { class: "hint" }, "The person who started the server has it. This tab keeps it until you close it."),
    h("div", { class: "actions" }, h("button", { type: "submit", class: "button strong" }, "Continue"))));
  input.focus();
}

async function begin() {
  try {
    await refresh();
  } catch (error) {
    if (error.status === 401) askForKey();
    else $("#results-body").replaceChildren(problem(error, begin));
    return;
  }
  document.body.classList.add("ready");
  drawAbout();
  await draw();
}

function listen() {
  addEventListener("popstate", draw);
  addEventListener("nearkin:state", draw);
  addEventListener("nearkin:facts", () => { drawAbout(); drawFilters(read()); });
  addEventListener("nearkin:corrections", countCorrections);
  listenToFilters();
  $("#view-search").addEventListener("click", () => go({ view: "search" }));
  $("#view-map").addEventListener("click", () => go({ view: "map" }));
  $("#open-corrections").addEventListener("click", showCorrections);
  $("#open-help").addEventListener("click", help);
  $(".skip").addEventListener("click", (event) => { event.preventDefault(); $("#main").focus(); });
  $("#home").addEventListener("click", (event) => { event.preventDefault(); clear(); history.pushState(null, "", location.pathname); draw(); });
  $("#file").addEventListener("change", (event) => { take(event.target.files[0]); event.target.value = ""; });

  addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])][0];
    if (file) { event.preventDefault(); take(file); }
  });
  let over = 0;
  const holdsFile = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  addEventListener("dragenter", (event) => { if (holdsFile(event)) { over++; $("#dropping").hidden = false; } });
  addEventListener("dragleave", (event) => { if (holdsFile(event) && --over <= 0) { over = 0; $("#dropping").hidden = true; } });
  addEventListener("dragover", (event) => { if (holdsFile(event)) event.preventDefault(); });
  addEventListener("drop", (event) => {
    over = 0;
    $("#dropping").hidden = true;
    if (!holdsFile(event)) return;
    event.preventDefault();
    take(event.dataTransfer.files[0]);
  });

  addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input:not([type=checkbox]):not([type=range]), textarea, select");
    // The page's keys also work in an opened photo, which handles its own keys first.
    if (event.ctrlKey || event.metaKey || event.altKey || typing || $("dialog[open]:not(#detail)")) return;
    const photo = $("#detail");
    if (event.key === "Escape" && selected.size && !photo.open) { clear(); return; }
    const act = { "/": () => { $("#side").classList.add("open"); $("#fold").setAttribute("aria-expanded", true); $("#label-find").focus(); }, "?": help, o: () => $("#file").click(),
      m: () => go({ view: read().view === "map" ? "search" : "map" }) }[event.key];
    if (!act) return;
    event.preventDefault();
    if (event.key !== "?") photo.close();
    act();
  });
}

listen();
begin();
