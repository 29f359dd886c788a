// What is drawn over the points of the map: photos where there is room, marks, names, the lasso and the legend.

import { h, number } from "./dom.js";
import { pictureOf } from "./api.js";
import { pickedLabels, shortLabel, withTicked } from "./labels.js";
import { colourOf } from "./points.js";
import { go, read } from "./state.js";
import { selected } from "./selection.js";

const PHOTOS_BELOW = 600; // points in view below which photos are drawn instead of them
const MOST_PHOTOS = 140;
const NAME_HEIGHT = 17;
const NAME_MARGIN = 4;
export const night = matchMedia("(prefers-color-scheme: dark)");

/** Draw a frame, and set `chart.drawn` to the photos in it. */
export function drawOver(chart) {
  const { context, view, dpr } = chart;
  const near = chart.cells.within(chart.inView(), PHOTOS_BELOW);
  const crowd = Math.sqrt(view.scale / (chart.least * 3));
  const size = Math.min(11, Math.max(2.6, (chart.ids.length > 20000 ? 2.6 : chart.ids.length > 3000 ? 3.6 : 6) * Math.min(2.2, crowd)));
  chart.paint.draw({ ...view, scale: view.scale * dpr, size: size * dpr });
  context.setTransform(dpr, 0, 0, dpr, 0, 0);
  context.clearRect(0, 0, chart.width, chart.height);
  const look = getComputedStyle(chart.host);
  const [ink, paper, accent] = ["--ink", "--paper", "--accent"].map((name) => look.getPropertyValue(name).trim());
  chart.drawn = near ? photos(chart, near, accent) : [];
  marks(chart, ink, paper, accent);
  names(chart);
  legend(chart);
  if (chart.lasso && chart.lasso.length > 1) {
    context.beginPath();
    chart.lasso.forEach((at, n) => context[n ? "lineTo" : "moveTo"](...at));
    context.closePath();
    context.globalAlpha = 0.14;
    context.fillStyle = accent;
    context.fill();
    context.globalAlpha = 1;
    context.lineWidth = 1.8;
    context.strokeStyle = accent;
    context.stroke();
  }
  if (document.activeElement === chart.over && chart.over.matches(":focus-visible")) {
    const [x, y] = [chart.width / 2, chart.height / 2];
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

function shade(label, alpha = 1) {
  return `rgba(${colourOf(label, night.matches).join(",")},${alpha})`;
}

/** Draw photos instead of points where they do not overlap. */
function photos(chart, near, accent) {
  const side = Math.min(112, Math.max(34, 0.8 * Math.sqrt((chart.width * chart.height) / Math.max(near.length, 1))));
  const lit = (i) => (selected.size ? selected.has(chart.ids[i]) : !chart.only || chart.only.has(chart.label[i]));
  const drawn = [];
  const taken = new Map();
  const cell = (x, y) => `${Math.floor(x / side)},${Math.floor(y / side)}`;
  for (const i of near.sort((a, b) => lit(b) - lit(a) || chart.rank[a] - chart.rank[b])) {
    if (drawn.length >= MOST_PHOTOS) break;
    const [x, y] = chart.toScreen(chart.x[i], chart.y[i]);
    let free = true;
    for (let dx = -1; dx <= 1 && free; dx++) for (let dy = -1; dy <= 1 && free; dy++) {
      free = !(taken.get(cell(x + dx * side, y + dy * side)) ?? []).some((other) => Math.abs(other.x - x) < side + 3 && Math.abs(other.y - y) < side + 3);
    }
    if (!free) continue;
    const photo = { i, x, y, side };
    drawn.push(photo);
    taken.set(cell(x, y), [...(taken.get(cell(x, y)) ?? []), photo]);
    drawPhoto(chart, photo, lit(i), accent);
  }
  return drawn;
}

function drawPhoto(chart, { i, x, y, side }, lit, accent) {
  const { context } = chart;
  const image = picture(chart, chart.ids[i]);
  const [left, top] = [x - side / 2, y - side / 2];
  context.save();
  context.globalAlpha = lit ? 1 : 0.22;
  context.beginPath();
  context.roundRect(left, top, side, side, Math.min(8, side / 6));
  context.fillStyle = shade(chart.label[i], 0.35);
  context.fill();
  if (image) {
    const least = Math.min(image.width, image.height);
    context.clip();
    context.drawImage(image, (image.width - least) / 2, (image.height - least) / 2, least, least, left, top, side, side);
  }
  context.lineWidth = selected.has(chart.ids[i]) ? 6 : 4;
  context.strokeStyle = selected.has(chart.ids[i]) ? accent : shade(chart.label[i]);
  context.stroke();
  context.restore();
}

function picture(chart, id) {
  if (!chart.pictures.has(id)) {
    chart.pictures.set(id, null);
    if (chart.pictures.size > 800) chart.pictures.delete(chart.pictures.keys().next().value);
    const image = new Image();
    image.onload = () => { chart.pictures.set(id, image); chart.draw(); };
    pictureOf(id).then((url) => { image.src = url; }, () => {});
  }
  return chart.pictures.get(id);
}

/** The names of labels as captions, next to a photo of the label: none covers a photo, a tool or another name. */
function names(chart) {
  const host = chart.host.getBoundingClientRect();
  const taken = [...chart.host.querySelectorAll(".tools .group, .legend")].map((element) => element.getBoundingClientRect())
    .map(({ left, right, top, bottom }) => ({ left: left - host.left, right: right - host.left, top: top - host.top, bottom: bottom - host.top }));
  for (const { x, y, side } of chart.drawn) taken.push({ left: x - side / 2, right: x + side / 2, top: y - side / 2, bottom: y + side / 2 });
  const isFree = (box) => box.top >= 0 && box.bottom <= chart.height && !taken.some((other) => box.left < other.right && other.left < box.right && box.top < other.bottom && other.top < box.bottom);
  const most = chart.width > 700 ? 28 : 18;
  const captions = [];
  chart.context.font = getComputedStyle(chart.captions).font;
  for (const { label, x, y } of chart.names) {
    if (captions.length >= (chart.width * chart.height) / 16000) break;
    if (chart.only && !chart.only.has(label)) continue;
    const [across, down] = chart.toScreen(x, y);
    if (across < 0 || down < 0 || across > chart.width || down > chart.height) continue;
    const name = shortLabel(chart.labels[label]);
    const text = name.length > most ? `${name.slice(0, most - 1)}…` : name;
    const width = Math.ceil(chart.context.measureText(text).width) + 2 * NAME_MARGIN;
    const far = (photo) => Math.hypot(photo.x - across, photo.y - down);
    const [photo] = chart.drawn.filter(({ i }) => chart.label[i] === label).sort((a, b) => far(a) - far(b));
    const box = corners(across, down, photo, width).map(([corner, top]) => {
      const left = Math.min(chart.width - width - 4, Math.max(4, corner));
      return { left, right: left + width, top, bottom: top + NAME_HEIGHT };
    }).find(isFree);
    if (!box) continue;
    taken.push(box);
    const caption = h("span", {}, text);
    Object.assign(caption.style, { left: `${box.left}px`, top: `${box.top}px`, width: `${width}px` });
    captions.push(caption);
  }
  chart.captions.replaceChildren(...captions);
}

/** Where a name can begin, best first: below, above, right and left of its photo; without a photo in the middle. */
function corners(across, down, photo, width) {
  if (!photo) return [0, 1, -1].map((step) => [across - width / 2, down + (step - 0.5) * NAME_HEIGHT]);
  const half = photo.side / 2 + 2;
  const lefts = [photo.x - width / 2, photo.x - half, photo.x + half - width];
  const level = photo.y - NAME_HEIGHT / 2;
  return [
    ...lefts.map((left) => [left, photo.y + half]), ...lefts.map((left) => [left, photo.y - half - NAME_HEIGHT]),
    [photo.x + half, level], [photo.x - half - width, level],
  ];
}

function marks(chart, ink, paper, accent) {
  const { context } = chart;
  const ring = (i, radius, colour, width = 2.4) => {
    const [x, y] = chart.toScreen(chart.x[i], chart.y[i]);
    for (const [line, shade] of [[width + 2.4, paper], [width, colour]]) {
      context.beginPath();
      context.arc(x, y, radius, 0, 2 * Math.PI);
      context.lineWidth = line;
      context.strokeStyle = shade;
      context.stroke();
    }
  };
  // Only outlines, which are smaller if there are many or the map is small, so the points below stay visible.
  const near = Math.sqrt(chart.view.scale / (chart.least * 3));
  const size = Math.max(0.4, Math.min(1, near * Math.sqrt(60 / chart.proxies.length))) * (chart.width > 700 ? 1 : 0.8);
  for (const { x, y, label } of chart.proxies) {
    const [across, down] = chart.toScreen(x, y);
    context.beginPath();
    for (let n = 0; n < 10; n++) {
      const far = size * (n % 2 ? 4.5 : 9.5);
      context[n ? "lineTo" : "moveTo"](across + far * Math.sin((n * Math.PI) / 5), down - far * Math.cos((n * Math.PI) / 5));
    }
    context.closePath();
    for (const [width, colour] of [[3 * size, paper], [1.6 * size, shade(label)]]) {
      context.lineWidth = width;
      context.strokeStyle = colour;
      context.stroke();
    }
  }
  const photos = new Map(chart.drawn.map((photo) => [photo.i, photo]));
  for (const i of chart.hits) {
    const photo = photos.get(i);
    if (!photo) { ring(i, 6, accent, 2); continue; }
    const far = photo.side / 2 + 3.5;
    context.beginPath();
    context.roundRect(photo.x - far, photo.y - far, 2 * far, 2 * far, Math.min(11, photo.side / 5));
    context.lineWidth = 2.6;
    context.strokeStyle = accent;
    context.stroke();
  }
  if (chart.asked !== undefined) ring(chart.asked, 11, ink, 3);
  if (chart.marked !== undefined) ring(chart.marked, 15, accent, 3);
  if (chart.hover >= 0 && !photos.has(chart.hover)) ring(chart.hover, 8, ink);
}

function legend(chart) {
  clearTimeout(chart.settling);
  chart.settling = setTimeout(() => {
    const count = new Map();
    for (const i of chart.cells.within(chart.inView())) if (chart.label[i] >= 0) count.set(chart.label[i], (count.get(chart.label[i]) ?? 0) + 1);
    const top = [...count].sort((a, b) => b[1] - a[1]).slice(0, 10);
    const { labels } = read();
    const ticked = new Set(pickedLabels(labels));
    chart.legend.replaceChildren(...top.map(([label, n]) => {
      const name = chart.labels[label];
      const dot = h("i", {});
      dot.style.background = shade(label);
      const is = ticked.has(name);
      return h("li", {}, h("button", { type: "button", "aria-pressed": is, title: is ? `Without ${name}` : `Only ${name}`, onclick: () => go({ labels: withTicked(labels, [name], !is) }) }, dot, h("span", {}, shortLabel(name)), h("em", {}, number(n))));
    }), ...(count.size > 10 ? [h("li", { class: "rest" }, `and ${number(count.size - 10)} more`)] : []), ...(chart.proxies.length ? [h("li", { class: "rest" }, "★ proxies")] : []));
  }, 120);
}
