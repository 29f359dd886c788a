// The map of the index: what looks alike stands together. Here it is asked for, made, waited for and shown.

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
  const place = $("#map-view");
  if (map && map.items === facts.about.items) {
    map.resize();
    map.recolour();
    return;
  }
  place.replaceChildren(h("div", { class: "empty" }, h("p", { class: "spin" }, "Loading the map …")));
  try {
    const status = await call("map/status");
    if (status.state === "working") await follow(place);
    else if (status.state === "none") offer(place, status.error);
    else await load(place);
  } catch (error) {
    if (error.status === 404) offer(place, null);
    else if (error.status === 422) offer(place, error.message); // a file that cannot be read
    else place.replaceChildren(h("div", { class: "empty failed", role: "alert" }, icon("alert"), h("h2", {}, "No map"), h("p", {}, error.message), button("Try again", "again", drawMap, { class: "button strong" })));
  }
}

function offer(place, error) {
  const little = facts.about.items === 0;
  place.replaceChildren(h("div", { class: "empty" }, icon("map"), h("h2", {}, "There is no map yet"),
    h("p", {}, little ? "Add photos first." : canWrite() ? `A map puts ${plural(facts.about.items, "photo", "photos")} where what looks alike stands together. It is made once and kept.` : "The server is read-only. Started without --read-only, it can make one."),
    error ? h("p", { class: "wrong", role: "alert" }, error) : null,
    canWrite() && !little ? button("Make the map", "map", () => make(place), { class: "button strong", id: "make-map" }) : null));
}

async function make(place) {
  try {
    await call("map", { method: "POST" });
    await follow(place);
  } catch (error) {
    offer(place, error.message);
  }
}

async function follow(place) {
  const bar = h("progress", { max: 1, "aria-label": "Making the map" });
  place.replaceChildren(h("div", { class: "empty" }, icon("map"), h("h2", {}, "Making the map"), bar, h("p", {}, "You can go on searching meanwhile.")));
  for (;;) {
    const { state, done, of, error } = await call("map/status");
    if (state === "ready") { facts.about.map = true; return load(place); }
    if (state === "none") return offer(place, error);
    if (of) bar.value = done / of;
    await new Promise((on) => setTimeout(on, 300));
  }
}

async function load(place) {
  const [rows, labels] = await Promise.all([call("map", { as: "arrayBuffer" }), call("map/labels")]);
  map?.end();
  map = new Chart(place, new Float32Array(rows), labels, () => make(place));
  showWanted();
}
