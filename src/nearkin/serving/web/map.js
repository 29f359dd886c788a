// The map of the index: what looks alike stands together. Zoom, pan, look, and select with a lasso.

import { $, button, h, icon, number, plural, toast } from "./dom.js";
import { call, lookup, pictureOf } from "./api.js";
import { canWrite, facts, fileName, nameOf } from "./facts.js";
import { detailOf } from "./detail.js";
import { Cells, colourOf, inside, painter } from "./points.js";
import { currentHits } from "./results.js";
import { go, isAsked, read } from "./state.js";
import { select, selected, toggle } from "./selection.js";

const PHOTOS_BELOW = 600; // points in view from which photos are drawn in their place
const MOST_PHOTOS = 140;
const REACH = 14; // pixels from which a point is meant
const night = matchMedia("(prefers-color-scheme: dark)");

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
  map = new Chart(place, new Float32Array(rows), labels);
  showWanted();
}

class Chart {
  constructor(place, rows, labels) {
    this.labels = labels;
    this.items = facts.about.items;
    const own = [];
    this.proxies = [];
    for (let i = 0; i < rows.length; i += 4) (rows[i] < 0 ? this.proxies : own).push(i);
    const column = (at) => Float32Array.from(own, (i) => rows[i + at]);
    // Up and across mean nothing here, so the map's longer side lies along the screen's.
    const spread = (at) => { const all = column(at).sort(); return all[Math.floor(all.length * 0.98)] - all[Math.floor(all.length * 0.02)]; };
    const room = place.getBoundingClientRect();
    const [across, up] = spread(1) > spread(2) === room.width > room.height ? [1, 2] : [2, 1];
    [this.ids, this.x, this.y, this.label] = [0, across, up, 3].map(column);
    this.proxies = this.proxies.map((i) => ({ x: rows[i + across], y: rows[i + up], label: rows[i + 3] }));
    this.byId = new Map(Array.from(this.ids, (id, i) => [id, i]));
    this.cells = new Cells(this.x, this.y);
    // Which photos give way where there is no room: always the same ones, so that nothing flickers.
    this.rank = Uint32Array.from(this.ids, (id) => Math.imul(id + 1, 2654435761) >>> 0);
    this.names = this.#middles();
    this.pictures = new Map();
    this.mode = "pan";
    this.pointers = new Map();
    this.hover = -1;
    this.#build(place);
    const places = new Float32Array(this.ids.length * 2);
    for (let i = 0; i < this.ids.length; i++) places.set([this.x[i], this.y[i]], 2 * i);
    this.paint.places(places);
    this.recolour();
    this.fit();
    this.watcher = new ResizeObserver(() => this.resize());
    this.watcher.observe(this.host);
    this.listener = new AbortController();
    const { signal } = this.listener;
    for (const name of ["nearkin:selection", "nearkin:hits", "nearkin:state", "nearkin:corrections"]) addEventListener(name, () => this.recolour(), { signal });
    night.addEventListener("change", () => this.recolour(), { signal });
    this.resize();
  }

  end() {
    this.watcher.disconnect();
    this.listener.abort();
  }

  #build(place) {
    this.points = h("canvas", { class: "points", "aria-hidden": "true" });
    this.over = h("canvas", { class: "over", id: "map", tabindex: 0, role: "application", "aria-roledescription": "map", "aria-label": `Map of ${plural(this.ids.length, "photo", "photos")}. Arrow keys move, plus and minus zoom, Enter opens the photo in the middle, Space selects it` });
    this.tip = h("div", { class: "tip", hidden: true });
    this.said = h("p", { class: "visually-hidden", "aria-live": "polite" });
    this.legend = h("ul", { class: "legend", "aria-label": "Labels in view" });
    this.tools = {
      pan: button("", "hand", () => this.use("pan"), { class: "tool", "aria-label": "Move the map", title: "Move the map", "aria-pressed": "true", id: "tool-pan" }),
      lasso: button("", "lasso", () => this.use("lasso"), { class: "tool", "aria-label": "Select with a lasso", title: "Lasso (l, or hold Shift)", "aria-pressed": "false", id: "tool-lasso" }),
    };
    const bar = h("div", { class: "tools", role: "toolbar", "aria-label": "Map" },
      h("div", { class: "group" }, this.tools.pan, this.tools.lasso, button("", "check", () => this.selectInView(), { class: "tool", "aria-label": "Select all in view", title: "Select all in view (a)", id: "select-view" })),
      h("div", { class: "group" },
        button("", "plus", () => this.zoom(1.6), { class: "tool", "aria-label": "Zoom in", title: "Zoom in (+)", id: "zoom-in" }),
        button("", "minus", () => this.zoom(1 / 1.6), { class: "tool", "aria-label": "Zoom out", title: "Zoom out (−)", id: "zoom-out" }),
        button("", "fit", () => this.fit(), { class: "tool", "aria-label": "Show all", title: "Show all (0)", id: "zoom-fit" })),
      canWrite() ? h("div", { class: "group" }, button("", "again", () => make(place), { class: "tool", "aria-label": "Make the map anew", title: "Make the map anew" })) : null);
    this.host = h("div", { class: "chart" }, this.points, this.over, bar, this.legend, this.tip, this.said);
    place.replaceChildren(this.host);
    this.paint = painter(this.points);
    this.context = this.over.getContext("2d");
    this.over.addEventListener("pointerdown", (event) => this.#down(event));
    this.over.addEventListener("pointermove", (event) => this.#move(event));
    for (const name of ["pointerup", "pointercancel"]) this.over.addEventListener(name, (event) => this.#up(event));
    this.over.addEventListener("pointerleave", () => this.#point(-1));
    this.over.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0016)), this.#at(event));
    }, { passive: false });
    this.over.addEventListener("keydown", (event) => this.#key(event));
    this.over.addEventListener("focus", () => this.draw());
    this.over.addEventListener("blur", () => this.draw());
  }

  use(mode) {
    this.mode = mode;
    for (const [name, tool] of Object.entries(this.tools)) tool.setAttribute("aria-pressed", name === mode);
    this.over.classList.toggle("lassoing", mode === "lasso");
  }

  /** Where a label's name stands: the middle of its points. */
  #middles() {
    const own = this.labels.map(() => []);
    for (let i = 0; i < this.label.length; i++) if (this.label[i] >= 0) own[this.label[i]].push(i);
    const middle = (values) => values.sort((a, b) => a - b)[values.length >> 1];
    return own.map((all, label) => ({ label, count: all.length, x: middle(all.map((i) => this.x[i])), y: middle(all.map((i) => this.y[i])) })).filter(({ count }) => count > 0);
  }

  recolour() {
    const state = read();
    const only = state.labels.length ? new Set(state.labels.map((label) => this.labels.indexOf(label))) : null;
    const chosen = selected.size > 0;
    const shades = new Uint8Array(this.ids.length * 4);
    const known = this.labels.map((_, label) => colourOf(label, night.matches));
    const nobody = colourOf(-1, night.matches);
    for (let i = 0; i < this.ids.length; i++) {
      const colour = this.label[i] < 0 ? nobody : known[this.label[i]];
      const lit = chosen ? selected.has(this.ids[i]) : !only || only.has(this.label[i]);
      shades.set([...colour, chosen && lit ? 255 : lit ? 220 : 40], 4 * i);
    }
    this.only = only;
    this.found = isAsked(state) ? [...currentHits().map((hit) => hit.id)].map((id) => this.byId.get(id)).filter((i) => i !== undefined) : [];
    this.asked = state.id === null ? undefined : this.byId.get(state.id);
    this.paint.colours(shades);
    this.draw();
  }

  resize() {
    const { width, height } = this.host.getBoundingClientRect();
    if (!width || !height) return;
    const before = this.width;
    this.dpr = Math.min(2, devicePixelRatio || 1);
    [this.width, this.height] = [width, height];
    for (const canvas of [this.points, this.over]) [canvas.width, canvas.height] = [Math.round(width * this.dpr), Math.round(height * this.dpr)];
    if (!before) this.fit();
    this.draw();
  }

  fit() {
    const { left, right, low, high } = this.cells.box;
    const [width, height] = [this.width || 800, this.height || 600];
    // Beside the tools and the legend, which lie upon the map.
    const [before, behind, above] = width > 700 ? [74, 236, 0] : [0, 0, 56];
    const scale = Math.min((width - before - behind - 48) / Math.max(right - left, 1e-3), (height - above - 90) / Math.max(high - low, 1e-3));
    this.view = { x: (left + right) / 2 + (behind - before) / 2 / scale, y: (low + high) / 2 + above / 2 / scale, scale };
    this.least = this.view.scale / 3;
    this.draw();
  }

  locate(id) {
    const i = this.byId.get(id);
    if (i === undefined) { toast("That photo is not on the map."); return; }
    Object.assign(this.view, { x: this.x[i], y: this.y[i], scale: Math.max(this.view.scale, this.least * 3 * 5) });
    this.marked = i;
    this.draw();
  }

  #at(event) {
    const box = this.over.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  #toMap([across, down]) {
    return [this.view.x + (across - this.width / 2) / this.view.scale, this.view.y - (down - this.height / 2) / this.view.scale];
  }

  #toScreen(x, y) {
    return [(x - this.view.x) * this.view.scale + this.width / 2, this.height / 2 - (y - this.view.y) * this.view.scale];
  }

  zoom(factor, about = [this.width / 2, this.height / 2]) {
    const [x, y] = this.#toMap(about);
    this.view.scale = Math.min(this.least * 3 * 4000, Math.max(this.least, this.view.scale * factor));
    const [now, then] = this.#toMap(about);
    this.view.x += x - now;
    this.view.y += y - then;
    this.draw();
  }

  #down(event) {
    this.over.setPointerCapture(event.pointerId);
    const at = this.#at(event);
    this.pointers.set(event.pointerId, at);
    this.moved = 0;
    this.lasso = this.pointers.size === 1 && (this.mode === "lasso" || event.shiftKey) ? [at] : null;
  }

  #move(event) {
    const at = this.#at(event);
    const before = this.pointers.get(event.pointerId);
    if (!before) { this.#point(this.#under(at)); return; }
    this.moved += Math.hypot(at[0] - before[0], at[1] - before[1]);
    if (this.pointers.size === 2) {
      const other = [...this.pointers].find(([pointer]) => pointer !== event.pointerId)[1];
      const apart = (a) => Math.hypot(a[0] - other[0], a[1] - other[1]) || 1;
      this.zoom(apart(at) / apart(before), [(at[0] + other[0]) / 2, (at[1] + other[1]) / 2]);
      this.lasso = null;
    }
    this.pointers.set(event.pointerId, at);
    if (this.lasso) this.lasso.push(at);
    else {
      this.view.x -= (at[0] - before[0]) / this.view.scale / this.pointers.size;
      this.view.y += (at[1] - before[1]) / this.view.scale / this.pointers.size;
    }
    if (this.moved > 4) this.#point(-1);
    this.draw();
  }

  #up(event) {
    if (!this.pointers.delete(event.pointerId)) return;
    const { lasso } = this;
    this.lasso = null;
    if (this.moved <= 4 && event.type === "pointerup") {
      const i = this.#under(this.#at(event));
      if (i >= 0) detailOf(this.ids[i]);
    } else if (lasso && lasso.length > 2) {
      const polygon = lasso.map((at) => this.#toMap(at));
      const [xs, ys] = [0, 1].map((axis) => polygon.map((each) => each[axis]));
      const candidates = this.cells.within({ left: Math.min(...xs), right: Math.max(...xs), low: Math.min(...ys), high: Math.max(...ys) });
      this.#selectThese(candidates.filter((i) => inside(polygon, this.x[i], this.y[i])), event.ctrlKey || event.metaKey);
    }
    this.draw();
  }

  #selectThese(points, add) {
    const chosen = points.filter((i) => !this.only || this.only.has(this.label[i]));
    if (!chosen.length) toast("No photo in there.");
    select(chosen.map((i) => this.ids[i]), { add });
  }

  selectInView() {
    this.#selectThese(this.cells.within(this.#inView()), false);
  }

  #inView() {
    const [left, high] = this.#toMap([0, 0]);
    const [right, low] = this.#toMap([this.width, this.height]);
    return { left, right, low, high };
  }

  #under(at) {
    const photo = (this.drawn ?? []).findLast(({ x, y, side }) => Math.abs(at[0] - x) <= side / 2 && Math.abs(at[1] - y) <= side / 2);
    return photo ? photo.i : this.cells.nearest(...this.#toMap(at), REACH / this.view.scale);
  }

  #point(i) {
    if (i === this.hover) return;
    this.hover = i;
    this.over.classList.toggle("over-point", i >= 0);
    this.#tell(i);
    this.draw();
  }

  async #tell(i) {
    this.tip.hidden = i < 0;
    if (i < 0) return;
    const id = this.ids[i];
    const [across, down] = this.#toScreen(this.x[i], this.y[i]);
    const name = this.label[i] < 0 ? "no label" : this.labels[this.label[i]];
    const image = h("img", { alt: "" });
    const words = h("p", {}, h("strong", {}, name));
    this.tip.replaceChildren(image, words);
    this.tip.classList.toggle("left", across > this.width - 220);
    this.tip.classList.toggle("up", down > this.height - 240);
    Object.assign(this.tip.style, { left: `${across}px`, top: `${down}px` });
    pictureOf(id).then((url) => { image.src = url; }, () => {});
    clearTimeout(this.asking);
    this.asking = setTimeout(async () => {
      const [item] = await lookup([id]).catch(() => []);
      if (item && this.hover === i) {
        words.replaceChildren(h("strong", {}, nameOf(item)), h("span", { class: "path" }, fileName(item.path)));
        this.said.textContent = `${nameOf(item)}, ${fileName(item.path)}`;
      }
    }, 120);
  }

  #key(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    const middle = () => this.#under([this.width / 2, this.height / 2]);
    const open = () => { const i = middle(); if (i >= 0) detailOf(this.ids[i]); };
    const act = { "+": () => this.zoom(1.6), "=": () => this.zoom(1.6), "-": () => this.zoom(1 / 1.6), 0: () => this.fit(), a: () => this.selectInView(),
      l: () => this.use(this.mode === "lasso" ? "pan" : "lasso"), Enter: open, " ": () => { const i = middle(); if (i >= 0) toggle(this.ids[i]); } }[event.key];
    if (event.ctrlKey || event.metaKey || (!step && !act)) return;
    event.preventDefault();
    event.stopPropagation();
    if (step) {
      const by = (event.shiftKey ? 160 : 40) / this.view.scale;
      this.view.x += step[0] * by;
      this.view.y += step[1] * by;
      this.draw();
      this.#point(middle());
    } else act();
  }

  draw() {
    if (this.frame || !this.width) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.#draw();
    });
  }

  #draw() {
    const { context, view, dpr } = this;
    const near = this.cells.within(this.#inView(), PHOTOS_BELOW);
    const crowd = Math.sqrt(view.scale / (this.least * 3));
    const size = Math.min(11, Math.max(2.6, (this.ids.length > 20000 ? 2.6 : this.ids.length > 3000 ? 3.6 : 6) * Math.min(2.2, crowd)));
    this.paint.draw({ ...view, scale: view.scale * dpr, size: size * dpr });
    context.setTransform(dpr, 0, 0, dpr, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    const look = getComputedStyle(this.host);
    const [ink, paper, accent] = ["--ink", "--paper", "--accent"].map((name) => look.getPropertyValue(name).trim());
    this.drawn = near ? this.#photos(near, accent) : [];
    this.#marks(ink, paper, accent);
    this.#names(ink, paper);
    this.#legend();
    if (this.lasso && this.lasso.length > 1) {
      context.beginPath();
      this.lasso.forEach((at, n) => context[n ? "lineTo" : "moveTo"](...at));
      context.closePath();
      context.globalAlpha = 0.14;
      context.fillStyle = accent;
      context.fill();
      context.globalAlpha = 1;
      context.lineWidth = 1.8;
      context.strokeStyle = accent;
      context.stroke();
    }
    if (document.activeElement === this.over && this.over.matches(":focus-visible")) {
      const [x, y] = [this.width / 2, this.height / 2];
      context.lineWidth = 1.5;
      context.strokeStyle = ink;
      for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
        context.beginPath();
        context.moveTo(x + dx * 6, y + dy * 6);
        context.lineTo(x + dx * 13, y + dy * 13);
        context.stroke();
      }
    }
  }

  #shade(label, alpha = 1) {
    return `rgba(${colourOf(label, night.matches).join(",")},${alpha})`;
  }

  /** Photos in place of points, where none covers another. */
  #photos(near, accent) {
    const side = Math.min(112, Math.max(34, 0.8 * Math.sqrt((this.width * this.height) / Math.max(near.length, 1))));
    const lit = (i) => (selected.size ? selected.has(this.ids[i]) : !this.only || this.only.has(this.label[i]));
    const drawn = [];
    const taken = new Map();
    const cell = (x, y) => `${Math.floor(x / side)},${Math.floor(y / side)}`;
    for (const i of near.sort((a, b) => lit(b) - lit(a) || this.rank[a] - this.rank[b])) {
      if (drawn.length >= MOST_PHOTOS) break;
      const [x, y] = this.#toScreen(this.x[i], this.y[i]);
      let free = true;
      for (let dx = -1; dx <= 1 && free; dx++) for (let dy = -1; dy <= 1 && free; dy++) {
        free = !(taken.get(cell(x + dx * side, y + dy * side)) ?? []).some((other) => Math.abs(other.x - x) < side + 3 && Math.abs(other.y - y) < side + 3);
      }
      if (!free) continue;
      const photo = { i, x, y, side };
      drawn.push(photo);
      taken.set(cell(x, y), [...(taken.get(cell(x, y)) ?? []), photo]);
      this.#photo(photo, lit(i), accent);
    }
    return drawn;
  }

  #photo({ i, x, y, side }, lit, accent) {
    const { context } = this;
    const image = this.#picture(this.ids[i]);
    const [left, top] = [x - side / 2, y - side / 2];
    context.save();
    context.globalAlpha = lit ? 1 : 0.22;
    context.beginPath();
    context.roundRect(left, top, side, side, Math.min(8, side / 6));
    context.fillStyle = this.#shade(this.label[i], 0.35);
    context.fill();
    if (image) {
      const least = Math.min(image.width, image.height);
      context.clip();
      context.drawImage(image, (image.width - least) / 2, (image.height - least) / 2, least, least, left, top, side, side);
    }
    context.lineWidth = selected.has(this.ids[i]) ? 6 : 4;
    context.strokeStyle = selected.has(this.ids[i]) ? accent : this.#shade(this.label[i]);
    context.stroke();
    context.restore();
  }

  #picture(id) {
    if (!this.pictures.has(id)) {
      this.pictures.set(id, null);
      if (this.pictures.size > 800) this.pictures.delete(this.pictures.keys().next().value);
      const image = new Image();
      image.onload = () => { this.pictures.set(id, image); this.draw(); };
      pictureOf(id).then((url) => { image.src = url; }, () => {});
    }
    return this.pictures.get(id);
  }

  #names(ink, paper) {
    const { context } = this;
    const boxes = [];
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.font = `600 ${this.width > 700 ? 12 : 11}px system-ui, sans-serif`;
    for (const { label, x, y } of this.names) {
      if (this.only && !this.only.has(label)) continue;
      let [across, down] = this.#toScreen(x, y);
      if (across < 0 || down < 0 || across > this.width || down > this.height) continue;
      const text = this.labels[label].length > 28 ? `${this.labels[label].slice(0, 27)}…` : this.labels[label];
      const half = context.measureText(text).width / 2 + 6;
      across = Math.min(this.width - half - 4, Math.max(half + 4, across));
      if (boxes.some((box) => Math.abs(box.across - across) < box.half + half && Math.abs(box.down - down) < 20)) continue;
      boxes.push({ across, down, half });
      context.globalAlpha = 0.78;
      context.fillStyle = paper;
      context.beginPath();
      context.roundRect(across - half, down - 10, 2 * half, 20, 10);
      context.fill();
      context.globalAlpha = 1;
      context.fillStyle = ink;
      context.fillText(text, across, down);
      if (boxes.length >= (this.width * this.height) / 24000) break;
    }
  }

  #marks(ink, paper, accent) {
    const { context } = this;
    const ring = (i, radius, colour, width = 2.4) => {
      const [x, y] = this.#toScreen(this.x[i], this.y[i]);
      for (const [line, shade] of [[width + 2.4, paper], [width, colour]]) {
        context.beginPath();
        context.arc(x, y, radius, 0, 2 * Math.PI);
        context.lineWidth = line;
        context.strokeStyle = shade;
        context.stroke();
      }
    };
    // Many stars would hide what lies below them; from near there is room for each.
    const near = Math.sqrt(this.view.scale / (this.least * 3));
    const size = Math.max(0.4, Math.min(1, near * Math.sqrt(60 / this.proxies.length)));
    for (const { x, y, label } of this.proxies) {
      const [across, down] = this.#toScreen(x, y);
      context.beginPath();
      for (let n = 0; n < 10; n++) {
        const far = size * (n % 2 ? 4 : 9);
        context[n ? "lineTo" : "moveTo"](across + far * Math.sin((n * Math.PI) / 5), down - far * Math.cos((n * Math.PI) / 5));
      }
      context.closePath();
      context.fillStyle = this.#shade(label);
      context.fill();
      context.lineWidth = 1.4 * size;
      context.strokeStyle = ink;
      context.stroke();
    }
    const beside = new Map((this.drawn ?? []).map((photo) => [photo.i, photo]));
    for (const i of this.found) {
      const photo = beside.get(i);
      if (!photo) { ring(i, 6, accent, 2); continue; }
      const far = photo.side / 2 + 3.5;
      context.beginPath();
      context.roundRect(photo.x - far, photo.y - far, 2 * far, 2 * far, Math.min(11, photo.side / 5));
      context.lineWidth = 2.6;
      context.strokeStyle = accent;
      context.stroke();
    }
    if (this.asked !== undefined) ring(this.asked, 11, ink, 3);
    if (this.marked !== undefined) ring(this.marked, 15, accent, 3);
    if (this.hover >= 0 && !beside.has(this.hover)) ring(this.hover, 8, ink);
  }

  #legend() {
    clearTimeout(this.settling);
    this.settling = setTimeout(() => {
      const count = new Map();
      for (const i of this.cells.within(this.#inView())) if (this.label[i] >= 0) count.set(this.label[i], (count.get(this.label[i]) ?? 0) + 1);
      const top = [...count].sort((a, b) => b[1] - a[1]).slice(0, 10);
      const { labels } = read();
      this.legend.replaceChildren(...top.map(([label, n]) => {
        const name = this.labels[label];
        const dot = h("i", {});
        dot.style.background = this.#shade(label);
        const is = labels.includes(name);
        return h("li", {}, h("button", { type: "button", "aria-pressed": is, title: is ? "Show all labels" : `Only ${name}`, onclick: () => go({ labels: is ? labels.filter((each) => each !== name) : [...labels, name] }) }, dot, h("span", {}, name), h("em", {}, number(n))));
      }), ...(count.size > 10 ? [h("li", { class: "rest" }, `and ${number(count.size - 10)} more`)] : []), ...(this.proxies.length ? [h("li", { class: "rest" }, "★ proxies")] : []));
    }, 120);
  }
}
