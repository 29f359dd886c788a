"use strict";
(() => {
  const root = document.documentElement;
  const errors = [];
  const note = (text) => {
    errors.push(text);
    root.dataset.errors = errors.join("\n");
  };
  addEventListener("error", (event) => note(event.message));
  addEventListener("unhandledrejection", (event) => note(String(event.reason)));
  addEventListener("securitypolicyviolation", (event) => note(`blocked: ${event.violatedDirective} ${event.blockedURI}`));

  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const SVG = "http://www.w3.org/2000/svg";
  const TAU = 2 * Math.PI;

  // Text only ever enters the page as text, never as HTML.
  const element = (name, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };
  const draw = (parent, name, attributes, text) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  };
  const runColour = (place) => `var(--run-${place % 8})`;
  const classColour = (place) => `var(--class-${place % 12})`;
  const shown = (value) => {
    const size = Math.abs(value);
    const text = size >= 1000 || Number.isInteger(value) ? String(Math.round(value)) : String(+value.toPrecision(4));
    return text.replace("-", "−");
  };

  // ---- the box that follows the pointer ----
  const hideTip = () => { tip.hidden = true; };
  const showTip = (event, title, lines, image) => {
    tip.replaceChildren();
    if (image >= 0) tip.append(element("img", { src: data.images[image], alt: "" }));
    tip.append(element("b", { textContent: title }));
    for (const line of lines) {
      const row = element("span", { textContent: line.text });
      if (line.colour) row.style.color = line.colour;
      tip.append(row);
    }
    tip.hidden = false;
    const fits = (at, size, room) => (at + 16 + size < room ? at + 16 : Math.max(6, at - 16 - size));
    tip.style.left = `${fits(event.clientX, tip.offsetWidth, innerWidth)}px`;
    tip.style.top = `${fits(event.clientY, tip.offsetHeight, innerHeight)}px`;
  };
  // A mouse hovers, a finger taps; both ask what is at a place of the drawing.
  const onPointer = (svg, ask, leave = () => {}) => {
    const at = (event) => {
      const box = svg.getBoundingClientRect();
      const scale = svg.viewBox.baseVal.width / box.width;
      ask((event.clientX - box.left) * scale, (event.clientY - box.top) * scale, event);
    };
    svg.onpointermove = at;
    svg.onpointerdown = at;
    svg.onpointerleave = () => { leave(); hideTip(); };
  };

  // ---- scales and axes ----
  const niceStep = (rough) => {
    const power = 10 ** Math.floor(Math.log10(rough));
    return power * ([1, 2, 5, 10].find((times) => times * power >= rough * 0.999) ?? 10);
  };
  const ticksBetween = (low, high, count, log) => {
    const ticks = [];
    if (log && high / low > 10) {
      for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
        ticks.push(...(high / low > 1000 ? [1] : [1, 2, 5]).map((times) => times * 10 ** power));
      }
      return ticks.filter((tick) => tick >= low && tick <= high);
    }
    const step = niceStep((high - low) / count);
    for (let number = Math.ceil(low / step); number * step <= high + step * 1e-9; number++) ticks.push(number * step);
    return ticks;
  };
  const padded = (values, share) => {
    let low = Math.min(...values), high = Math.max(...values);
    if (low === high) { low -= Math.abs(low) * 0.1 || 1; high += Math.abs(high) * 0.1 || 1; }
    return [low - share * (high - low), high + share * (high - low)];
  };
  // Draws the axes and returns the functions from values to places.
  const frame = (svg, width, height, spec, xRange, yRange) => {
    const [left, right, top, bottom] = [50, width - 10, 8, height - 38];
    const warp = spec.log ? Math.log : (value) => value;
    const x = (value) => left + ((value - xRange[0]) / (xRange[1] - xRange[0])) * (right - left);
    const y = (value) => bottom - ((warp(value) - warp(yRange[0])) / (warp(yRange[1]) - warp(yRange[0]))) * (bottom - top);
    for (const tick of ticksBetween(yRange[0], yRange[1], 4, spec.log)) {
      draw(svg, "line", { class: "grid", x1: left, x2: right, y1: y(tick), y2: y(tick) });
      draw(svg, "text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, shown(tick));
    }
    // Epochs and steps are counted: between two of them there is nothing to name.
    const most = Math.max(2, width / 90), wide = xRange[1] - xRange[0];
    for (const tick of ticksBetween(xRange[0], xRange[1], spec.kind === "lines" && wide >= 1 ? Math.min(most, wide) : most)) {
      draw(svg, "line", { class: "axis", x1: x(tick), x2: x(tick), y1: bottom, y2: bottom + 4 });
      draw(svg, "text", { x: x(tick), y: bottom + 17, "text-anchor": "middle" }, shown(tick));
    }
    draw(svg, "line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom });
    draw(svg, "text", { x: (left + right) / 2, y: height - 5, "text-anchor": "middle" }, spec.x);
    return { x, y, left, right, top, bottom };
  };

  // ---- marks ----
  const polygon = (corners, radius, turn, inner) => {
    const points = [];
    const count = inner ? 2 * corners : corners;
    for (let place = 0; place < count; place++) {
      const reach = inner && place % 2 ? radius * inner : radius;
      const angle = turn + (place / count) * TAU;
      points.push(`${(reach * Math.sin(angle)).toFixed(1)},${(-reach * Math.cos(angle)).toFixed(1)}`);
    }
    return `M${points.join("L")}Z`;
  };
  const star = (radius) => polygon(5, radius, 0, 0.45);
  const SHAPES = [
    (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`,
    (r) => polygon(4, r * 1.25, TAU / 8),
    (r) => polygon(3, r * 1.35, 0),
    (r) => polygon(4, r * 1.25, 0),
    (r) => polygon(3, r * 1.35, TAU / 2),
    (r) => polygon(4, r * 1.45, 0, 0.4),
  ];
  const shapeOf = (place, radius) => SHAPES[place % SHAPES.length](radius);
  const nearest = (marks, x, y, reach) => {
    let best = null, least = reach * reach;
    for (const mark of marks) {
      const away = (mark.x - x) ** 2 + (mark.y - y) ** 2;
      if (away < least) { least = away; best = mark; }
    }
    return best;
  };

  // ---- the kinds of chart ----
  const drawLines = (svg, spec, width, hidden) => {
    const height = 250;
    const series = spec.series.filter((each) => !hidden.has(each.series));
    const points = (series.length ? series : spec.series).flatMap((each) => each.points);
    const stars = series.flatMap((each) => each.stars.map(([, value]) => value));
    const ys = [...points.flatMap(([, mean, spread]) => [mean - (spread ?? 0), mean + (spread ?? 0)]), ...stars];
    const above = spec.log ? ys.filter((value) => value > 0) : ys;
    const yRange = spec.log ? [Math.min(...above) * 0.9, Math.max(...above) * 1.1] : padded(above, 0.06);
    if (spec.most) yRange[1] = Math.min(yRange[1], spec.most + 0.01 * (spec.most - yRange[0]));
    const across = points.map((point) => point[0]);
    const alone = across.every((value) => value === across[0]);
    const xRange = alone ? [across[0] - 1, across[0] + 1] : padded(across, 0.02);
    // What is compared with itself has both axes alike, and a line where the two are the same.
    const place = spec.diagonal
      ? frame(svg, width, height, spec, [0, spec.diagonal], [0, spec.diagonal])
      : frame(svg, width, height, spec, xRange, yRange);
    if (spec.diagonal) draw(svg, "line", { class: "rule", x1: place.left, x2: place.right, y1: place.bottom, y2: place.top, style: "stroke:var(--soft)" });
    const inside = (value) => Math.min(place.bottom, Math.max(place.top, place.y(spec.log ? Math.max(value, yRange[0]) : value)));
    for (const rule of spec.rules ?? []) {
      if (hidden.has(rule.series)) continue;
      const at = place.x(rule.x);
      draw(svg, "line", { class: "rule", x1: at, x2: at, y1: place.top, y2: place.bottom, style: `stroke:${runColour(rule.series)}` });
    }
    for (const each of series) {
      const colour = runColour(each.series);
      const spread = each.points.filter((point) => point[2] !== null);
      if (spread.length > 1) {
        const up = spread.map(([x, mean, far]) => `${place.x(x)},${inside(mean + far)}`);
        const down = spread.map(([x, mean, far]) => `${place.x(x)},${inside(mean - far)}`).reverse();
        draw(svg, "polygon", { class: "band", points: [...up, ...down].join(" "), style: `fill:${colour}` });
      }
      const line = each.points.map(([x, mean]) => `${place.x(x)},${place.y(mean)}`).join(" ");
      draw(svg, "polyline", { class: `line dash-${each.series % 4}`, points: line, style: `stroke:${colour}` });
      for (const [x, mean] of each.points.length <= 25 ? each.points : []) {
        draw(svg, "path", { d: shapeOf(each.series, 3), transform: `translate(${place.x(x)} ${place.y(mean)})`, style: `fill:${colour}` });
      }
      for (const [x, value] of each.stars) {
        draw(svg, "path", { class: "star", d: star(8), transform: `translate(${place.x(x)} ${place.y(value)})`, style: `fill:${colour}` });
      }
    }
    const cursor = draw(svg, "line", { class: "cursor", y1: place.top, y2: place.bottom, visibility: "hidden" });
    const xs = [...new Set(series.flatMap((each) => each.points.map((point) => point[0])))];
    onPointer(svg, (x, y, event) => {
      if (!xs.length) return;
      const at = xs.reduce((best, value) => (Math.abs(place.x(value) - x) < Math.abs(place.x(best) - x) ? value : best));
      cursor.setAttribute("x1", place.x(at));
      cursor.setAttribute("x2", place.x(at));
      cursor.setAttribute("visibility", "visible");
      const lines = series.flatMap((each) => each.points.filter((point) => point[0] === at).map(([, mean, spread, more]) => ({
        colour: runColour(each.series),
        text: `${each.name}: ${shown(mean)}${spread === null ? "" : ` ± ${shown(spread)}`}${more ? `, ${more}` : ""}`,
      })));
      showTip(event, `${spec.x} ${shown(at)}`, lines);
    }, () => cursor.setAttribute("visibility", "hidden"));
    return height;
  };

  const drawBars = (svg, spec, width) => {
    const height = 220;
    const numbers = spec.bars.map((bar) => bar.x);
    const range = [Math.min(...numbers) - 0.6, Math.max(...numbers) + 0.6];
    const place = frame(svg, width, height, spec, range, [0, Math.max(...spec.bars.map((bar) => bar.y)) * 1.05]);
    const wide = Math.min(40, Math.max(1, 0.75 * (place.x(1) - place.x(0))));
    const marks = spec.bars.map((bar) => {
      const colour = runColour(spec.series);
      const look = bar.ended ? `fill:${colour}` : `fill:none;stroke:${colour};stroke-dasharray:3 2`;
      const top = place.y(bar.y);
      draw(svg, "rect", { x: place.x(bar.x) - wide / 2, y: top, width: wide, height: Math.max(0, place.bottom - top), style: look });
      return { x: place.x(bar.x), y: 0, bar };
    });
    onPointer(svg, (x, y, event) => {
      const found = nearest(marks, x, 0, width);
      const cut = found.bar.ended ? "" : ", cut short by the end of the run";
      showTip(event, `${spec.x} ${found.bar.x}`, [{ text: `${found.bar.y} ${spec.y}${cut}` }]);
    });
    return height;
  };

  const drawScatter = (svg, spec, width) => {
    const height = 280;
    const range = (key) => padded(spec.points.map((point) => point[key]), 0.1);
    const place = frame(svg, width, height, spec, range("x"), range("y"));
    draw(svg, "text", { x: place.left + 6, y: place.top + 10 }, spec.y);
    const marks = spec.points.map((point) => {
      const mark = { x: place.x(point.x), y: place.y(point.y), point };
      draw(svg, "circle", { class: "point", cx: mark.x, cy: mark.y, r: 3.5, style: `fill:${runColour(0)}` });
      return mark;
    });
    const ring = draw(svg, "circle", { class: "ring", r: 7, visibility: "hidden" });
    onPointer(svg, (x, y, event) => {
      const found = nearest(marks, x, y, 24);
      ring.setAttribute("visibility", found ? "visible" : "hidden");
      if (!found) return hideTip();
      ring.setAttribute("cx", found.x);
      ring.setAttribute("cy", found.y);
      showTip(event, found.point.name, [{ text: `${spec.y} ${shown(found.point.y)}` }, { text: `similarity ${shown(found.point.x)}` }]);
    }, () => ring.setAttribute("visibility", "hidden"));
    return height;
  };

  const drawMap = (svg, spec, width, focus) => {
    const pad = 16;
    const all = [...spec.points, ...spec.proxies];
    const reach = spec.circle ? [[spec.circle[0] - spec.circle[2], spec.circle[1] - spec.circle[2]], [spec.circle[0] + spec.circle[2], spec.circle[1] + spec.circle[2]]] : [];
    const [xs, ys] = [0, 1].map((axis) => [...all, ...reach].map((point) => point[axis]));
    const [low, high] = [[Math.min(...xs), Math.min(...ys)], [Math.max(...xs), Math.max(...ys)]];
    const [wide, tall] = [Math.max(1, high[0] - low[0]), Math.max(1, high[1] - low[1])];
    const height = Math.min(Math.max(220, ((width - 2 * pad) * tall) / wide + 2 * pad), 1.1 * width);
    const scale = Math.min((width - 2 * pad) / wide, (height - 2 * pad) / tall);
    const x = (value) => width / 2 + (value - (low[0] + high[0]) / 2) * scale;
    const y = (value) => height / 2 + (value - (low[1] + high[1]) / 2) * scale;
    if (spec.circle) draw(svg, "circle", { class: "grid", fill: "none", cx: x(spec.circle[0]), cy: y(spec.circle[1]), r: spec.circle[2] * scale });
    const radius = Math.min(4.5, Math.max(2.4, 75 / Math.sqrt(spec.points.length)));
    const faded = (kind) => (focus === null || focus === kind ? "" : " dim");
    const marks = spec.points.map(([px, py, kind, image]) => {
      const mark = { x: x(px), y: y(py), kind, image };
      draw(svg, "path", { class: `point${faded(kind)}`, d: shapeOf(kind, radius), transform: `translate(${mark.x.toFixed(1)} ${mark.y.toFixed(1)})`, style: `fill:${classColour(kind)}` });
      return mark;
    });
    for (const [px, py, kind] of spec.proxies) {
      const mark = { x: x(px), y: y(py), kind, image: -1, proxy: true };
      draw(svg, "path", { class: `proxy${faded(kind)}`, d: star(spec.proxies.length > 40 ? 6 : 8), transform: `translate(${mark.x.toFixed(1)} ${mark.y.toFixed(1)})`, style: `fill:${classColour(kind)}` });
      marks.push(mark);
    }
    const ring = draw(svg, "circle", { class: "ring", r: radius + 4, visibility: "hidden" });
    onPointer(svg, (px, py, event) => {
      const found = nearest(marks.filter((mark) => focus === null || mark.kind === focus), px, py, 22);
      ring.setAttribute("visibility", found ? "visible" : "hidden");
      if (!found) return hideTip();
      ring.setAttribute("cx", found.x);
      ring.setAttribute("cy", found.y);
      showTip(event, spec.classes[found.kind], found.proxy ? [{ text: "proxy" }] : [], found.image);
    }, () => ring.setAttribute("visibility", "hidden"));
    return height;
  };

  // Names below a map: a click lifts a class out, a second one puts it back.
  const mapLegend = (figure, spec, redraw) => {
    const list = element("div", { className: "legend" });
    spec.classes.forEach((name, kind) => {
      const button = element("button", { type: "button" });
      button.setAttribute("aria-pressed", "false");
      const key = draw(button, "svg", { class: "key", width: 12, height: 12, viewBox: "-6 -6 12 12", "aria-hidden": "true" });
      draw(key, "path", { d: shapeOf(kind, 4), style: `fill:${classColour(kind)}` });
      button.append(name);
      button.onclick = () => {
        const pressed = button.getAttribute("aria-pressed") === "true";
        for (const other of list.children) other.setAttribute("aria-pressed", "false");
        button.setAttribute("aria-pressed", String(!pressed));
        redraw(pressed ? null : kind);
      };
      list.append(button);
    });
    if (spec.proxies.length) {
      const mark = element("span", { className: "note" });
      const key = draw(mark, "svg", { class: "key", width: 16, height: 14, viewBox: "-8 -8 16 16", "aria-hidden": "true" });
      draw(key, "path", { class: "proxy", d: star(7), style: "fill:none" });
      mark.append(" proxy");
      list.append(mark);
    }
    figure.append(list);
  };

  // ---- putting the charts on the page ----
  const hiddenSeries = new Map();
  const drawings = [...document.querySelectorAll("[data-chart]")].map((figure) => {
    const spec = data.charts[figure.dataset.chart];
    const section = figure.closest("section");
    if (!hiddenSeries.has(section)) hiddenSeries.set(section, new Set());
    const svg = draw(figure, "svg", { role: "img", "aria-label": figure.dataset.label });
    let focus = null, drawnAt = 0;
    const redraw = () => {
      const width = Math.max(260, Math.round(figure.clientWidth));
      if (!figure.clientWidth && drawnAt) return;
      drawnAt = width;
      svg.replaceChildren();
      // Known before anything is drawn, so that a pointer is placed right; the height is set when it is.
      svg.setAttribute("viewBox", `0 0 ${width} 250`);
      const kinds = { lines: drawLines, bars: drawBars, scatter: drawScatter, map: drawMap };
      const height = kinds[spec.kind](svg, spec, width, spec.kind === "map" ? focus : hiddenSeries.get(section));
      svg.setAttribute("viewBox", `0 0 ${width} ${Math.round(height)}`);
    };
    if (spec.kind === "map") mapLegend(figure, spec, (kind) => { focus = kind; redraw(); });
    redraw();
    return { section, redraw };
  });
  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => drawings.forEach((each) => each.redraw()), 120);
  });
  addEventListener("scroll", hideTip, { passive: true });
  for (const button of document.querySelectorAll("button.series")) {
    button.onclick = () => {
      const section = button.closest("section");
      const hidden = hiddenSeries.get(section);
      const place = Number(button.dataset.series);
      if (!hidden.delete(place)) hidden.add(place);
      button.setAttribute("aria-pressed", String(!hidden.has(place)));
      drawings.filter((each) => each.section === section).forEach((each) => each.redraw());
    };
  }

  // ---- images, tables, copying, printing ----
  for (const image of document.querySelectorAll("img[data-image]")) image.src = data.images[image.dataset.image];

  const valueOf = (cell) => {
    const given = cell.dataset.value ?? cell.textContent;
    return given.trim() !== "" && Number.isFinite(Number(given)) ? Number(given) : given;
  };
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), undefined, { numeric: true });
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => {
      const button = element("button", { type: "button", textContent: heading.textContent });
      heading.replaceChildren(button);
      button.onclick = () => {
        const upwards = heading.getAttribute("aria-sort") !== "ascending";
        headings.forEach((other) => other.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", upwards ? "ascending" : "descending");
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => (upwards ? 1 : -1) * compare(valueOf(a.cells[column]), valueOf(b.cells[column])));
        table.tBodies[0].append(...rows);
      };
    });
  }

  const copyText = async (text) => {
    if (navigator.clipboard && isSecureContext) return navigator.clipboard.writeText(text);
    const area = element("textarea", { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  };
  for (const button of document.querySelectorAll("button.copy")) {
    button.onclick = async () => {
      await copyText(button.parentElement.querySelector("code").textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    };
  }

  // Paper cannot be clicked: what is folded away is printed too.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((each) => { each.open = true; });
  });
  addEventListener("afterprint", () => folded.forEach((each) => { each.open = false; }));

  root.dataset.errors = errors.join("\n");
  root.dataset.ready = String(drawings.length);
})();
