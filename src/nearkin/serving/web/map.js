// The map of the index: its status, making it and loading it.

import { $, button, h, icon, plural } from "./dom.js";
import { call } from "./api.js";
import { Chart } from "./chart.js";
import { canWrite, facts } from "./facts.js";

let map = null;
let wanted = null; // an item to show once there is a map

addEventListener("nearkin:locate", (event) => {
  wanted = event.detail;
  if (map && map.items === facts.about.items) showWanted();
});

function showWanted() {
  if (wanted !== null) map.locate(wanted);
  wanted = null;
}

export async function drawMap() {
  const view = $("#map-view");
  if (map && map.items === facts.about.items) {
    map.resize();
    map.recolour();
    return;
  }
  view.replaceChildren(h("div", { class: "empty" }, h("p", { class: "spin" }, "Loading the map …")));
  try {
    const status = await call("map/status");
    if (status.state === "working") await follow(view);
    else if (status.state === "none") offer(view, status.error);
    else await load(view);
  } catch (error) {
    if (error.status === 404) offer(view, null);
    else if (error.status === 422) offer(view, error.message); // a file that cannot be read
    else view.replaceChildren(h("div", { class: "empty failed", role: "alert" }, icon("alert"), h("h2", {}, "No map"), h("p", {}, error.message), button("Try again", "again", drawMap, { class: "button strong" })));
  }
}

function offer(view, error) {
  const little = facts.about.items === 0;
  view.replaceChildren(h("div", { class: "empty" }, icon("map"), h("h2", {}, "There is no map yet"),
    h("p", {}, little ? "Add photos first." : canWrite() ? `A map of ${plural(facts.about.items, "photo", "photos")} shows similar ones close to each other. It is made once and kept.` : "The server is read-only. Started without --read-only, it can make one."),
    error ? h("p", { class: "wrong", role: "alert" }, error) : null,
    canWrite() && !little ? button("Make the map", "map", () => make(view), { class: "button strong", id: "make-map" }) : null));
}

async function make(view) {
  try {
    await call("map", { method: "POST" });
    await follow(view);
  } catch (error) {
    offer(view, error.message);
  }
}

async function follow(view) {
  const bar = h("progress", { max: 1, "aria-label": "Making the map" });
  view.replaceChildren(h("div", { class: "empty" }, icon("map"), h("h2", {}, "Making the map"), bar, h("p", {}, "You can search meanwhile.")));
  for (;;) {
    const { state, done, of, error } = await call("map/status");
    if (state === "ready") return load(view);
    if (state === "none") return offer(view, error);
    if (of) bar.value = done / of;
    await new Promise((on) => setTimeout(on, 300));
  }
}

async function load(view) {
  const [rows, labels] = await Promise.all([call("map", { as: "arrayBuffer" }), call("map/labels")]);
  map?.end();
  map = new Chart(view, new Float32Array(rows), labels, () => make(view));
  showWanted();
}
