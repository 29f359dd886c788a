// The chart of the map: its points, its view, and its pointer and keyboard input.

import { button, h, plural, toast } from "./dom.js";
import { lookup, pictureOf } from "./api.js";
import { canWrite, facts, fileName } from "./facts.js";
import { above, nameOf, pickedLabels, shortLabel } from "./labels.js";
import { detailOf } from "./detail.js";
import { drawOver, night } from "./overlay.js";
import { Cells, colourOf, inside, painter } from "./points.js";
import { currentHits } from "./results.js";
import { isAsked, read } from "./state.js";
import { select, selected, toggle } from "./selection.js";

const REACH = 14; // pixels from which a point is meant

/** Points on a canvas that can be panned and zoomed; a button calls `remake`. */
export class Chart {
  constructor(parent, rows, labels, remake) {
    this.labels = labels;
    this.items = facts.about.items;
    const items = [];
    this.proxies = [];
    for (let i = 0; i < rows.length; i += 4) (rows[i] < 0 ? this.proxies : items).push(i);
    const column = (at) => Float32Array.from(items, (i) => rows[i + at]);
    // Directions have no meaning, so the map is turned to have its longer side along the screen's.
    const spread = (at) => { const all = column(at).sort(); return all[Math.floor(all.length * 0.98)] - all[Math.floor(all.length * 0.02)]; };
    const room = parent.getBoundingClientRect();
    const [across, up] = spread(1) > spread(2) === room.width > room.height ? [1, 2] : [2, 1];
    [this.ids, this.x, this.y, this.label] = [0, across, up, 3].map(column);
    this.proxies = this.proxies.map((i) => ({ x: rows[i + across], y: rows[i + up], label: rows[i + 3] }));
    this.byId = new Map(Array.from(this.ids, (id, i) => [id, i]));
    this.cells = new Cells(this.x, this.y);
    // Where there is no room, always the same photos are hidden, so nothing flickers.
    this.rank = Uint32Array.from(this.ids, (id) => Math.imul(id + 1, 2654435761) >>> 0);
    this.names = this.#middles();
    this.pictures = new Map();
    this.mode = "pan";
    this.pointers = new Map();
    this.hover = -1;
    this.#build(parent, remake);
    const points = new Float32Array(this.ids.length * 2);
    for (let i = 0; i < this.ids.length; i++) points.set([this.x[i], this.y[i]], 2 * i);
    this.paint.points(points);
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

  #build(parent, remake) {
    this.points = h("canvas", { class: "points", "aria-hidden": "true" });
    this.over = h("canvas", { class: "over", id: "map", tabindex: 0, role: "application", "aria-roledescription": "map", "aria-label": `Map of ${plural(this.ids.length, "photo", "photos")}. Arrow keys move, plus and minus zoom, Enter opens the photo in the middle, Space selects it` });
    this.tip = h("div", { class: "tip", hidden: true });
    this.announced = h("p", { class: "visually-hidden", "aria-live": "polite" });
    this.legend = h("ul", { class: "legend", "aria-label": "Labels in view" });
    this.captions = h("div", { class: "captions", "aria-hidden": "true" });
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
      canWrite() ? h("div", { class: "group" }, button("", "again", remake, { class: "tool", "aria-label": "Make the map again", title: "Make the map again" })) : null);
    this.host = h("div", { class: "chart" }, this.points, this.over, this.captions, bar, this.legend, this.tip, this.announced);
    parent.replaceChildren(this.host);
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

  /** The place of a label's name: the middle of its points. */
  #middles() {
    const members = this.labels.map(() => []);
    for (let i = 0; i < this.label.length; i++) if (this.label[i] >= 0) members[this.label[i]].push(i);
    const middle = (values) => values.sort((a, b) => a - b)[values.length >> 1];
    return members.map((all, label) => ({ label, count: all.length, x: middle(all.map((i) => this.x[i])), y: middle(all.map((i) => this.y[i])) })).filter(({ count }) => count > 0);
  }

  recolour() {
    const state = read();
    const only = state.labels.length ? new Set(pickedLabels(state.labels).map((label) => this.labels.indexOf(label))) : null;
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
    this.hits = isAsked(state) ? [...currentHits().map((hit) => hit.id)].map((id) => this.byId.get(id)).filter((i) => i !== undefined) : [];
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
    // The tools and the legend cover a part of the map.
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

  toScreen(x, y) {
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
      const [xs, ys] = [0, 1].map((axis) => polygon.map((corner) => corner[axis]));
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
    this.#selectThese(this.cells.within(this.inView()), false);
  }

  inView() {
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
    const [across, down] = this.toScreen(this.x[i], this.y[i]);
    const label = this.label[i] < 0 ? null : this.labels[this.label[i]];
    const image = h("img", { alt: "" });
    const words = h("p", {}, h("strong", {}, label === null ? "no label" : shortLabel(label)), above(label));
    this.tip.replaceChildren(image, words);
    this.tip.classList.toggle("left", across > this.width - 220);
    this.tip.classList.toggle("up", down > this.height - 240);
    Object.assign(this.tip.style, { left: `${across}px`, top: `${down}px` });
    pictureOf(id).then((url) => { image.src = url; }, () => {});
    clearTimeout(this.asking);
    this.asking = setTimeout(async () => {
      const [item] = await lookup([id]).catch(() => []);
      if (item && this.hover === i) {
        words.replaceChildren(h("strong", {}, nameOf(item)), above(item.label), h("span", { class: "path" }, fileName(item.path)));
        this.announced.textContent = `${nameOf(item)}, ${fileName(item.path)}`;
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
      drawOver(this);
    });
  }
}
