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
  const draw = (parent, name, attributes) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    parent.append(made);
    return made;
  };
  const classColour = (index) => `var(--class-${index % 12})`;

  // ---- the box that follows the pointer ----
  const hideTip = () => { tip.hidden = true; };
  const showTip = (event, title, image) => {
    tip.replaceChildren();
    if (image >= 0) tip.append(element("img", { src: data.images[image], alt: "" }));
    tip.append(element("b", { textContent: title }));
    tip.hidden = false;
    const fits = (at, size, room) => (at + 16 + size < room ? at + 16 : Math.max(6, at - 16 - size));
    tip.style.left = `${fits(event.clientX, tip.offsetWidth, innerWidth)}px`;
    tip.style.top = `${fits(event.clientY, tip.offsetHeight, innerHeight)}px`;
  };
  addEventListener("scroll", hideTip, { passive: true });

  // ---- marks ----
  const polygon = (corners, radius, turn, inner) => {
    const points = [];
    const count = inner ? 2 * corners : corners;
    for (let corner = 0; corner < count; corner++) {
      const reach = inner && corner % 2 ? radius * inner : radius;
      const angle = turn + (corner / count) * TAU;
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
  const shapeOf = (index, radius) => SHAPES[Math.floor(index / 12) % SHAPES.length](radius);
  const nearest = (marks, x, y, reach) => {
    let best = null, least = reach * reach;
    for (const mark of marks) {
      const distance = (mark.x - x) ** 2 + (mark.y - y) ** 2;
      if (distance < least) { least = distance; best = mark; }
    }
    return best;
  };

  // ---- maps ----
  const drawMap = (svg, map, width, focus) => {
    const pad = 16;
    const all = [...map.points, ...map.proxies];
    const [xs, ys] = [0, 1].map((axis) => all.map((point) => point[axis]));
    const [wide, tall] = [xs, ys].map((values) => Math.max(1, Math.max(...values) - Math.min(...values)));
    const height = Math.min(Math.max(220, ((width - 2 * pad) * tall) / wide + 2 * pad), 1.1 * width);
    const scale = Math.min((width - 2 * pad) / wide, (height - 2 * pad) / tall);
    const x = (value) => width / 2 + (value - (Math.min(...xs) + Math.max(...xs)) / 2) * scale;
    const y = (value) => height / 2 + (value - (Math.min(...ys) + Math.max(...ys)) / 2) * scale;
    const radius = Math.min(4.5, Math.max(2.4, 75 / Math.sqrt(map.points.length)));
    const faded = (label) => (focus === null || focus === label ? "" : " dim");
    const mark = ([px, py, label, image], name, shape) => {
      const made = { x: x(px), y: y(py), label, image: image ?? -1, proxy: name === "proxy" };
      draw(svg, "path", { class: name + faded(label), d: shape, transform: `translate(${made.x.toFixed(1)} ${made.y.toFixed(1)})`, style: `fill:${classColour(label)}` });
      return made;
    };
    const marks = [
      ...map.points.map((point) => mark(point, "point", shapeOf(point[2], radius))),
      ...map.proxies.map((point) => mark(point, "proxy", star(map.proxies.length > 40 ? 6 : 8))),
    ];
    const ring = draw(svg, "circle", { class: "ring", r: radius + 4, visibility: "hidden" });
    const leave = () => { ring.setAttribute("visibility", "hidden"); hideTip(); };
    // A mouse hovers, a finger taps.
    svg.onpointermove = svg.onpointerdown = (event) => {
      const box = svg.getBoundingClientRect();
      const [px, py] = [event.clientX - box.left, event.clientY - box.top].map((value) => (value * width) / box.width);
      const hit = nearest(marks.filter((each) => focus === null || each.label === focus), px, py, 22);
      if (!hit) return leave();
      ring.setAttribute("visibility", "visible");
      ring.setAttribute("cx", hit.x);
      ring.setAttribute("cy", hit.y);
      showTip(event, map.classes[hit.label] + (hit.proxy ? ", proxy" : ""), hit.image);
    };
    svg.onpointerleave = leave;
    svg.setAttribute("viewBox", `0 0 ${width} ${Math.round(height)}`);
  };

  // Names below a map: a click highlights a class, a second one ends that.
  const mapLegend = (figure, map, redraw) => {
    const list = element("div", { className: "legend" });
    map.classes.forEach((name, label) => {
      const button = element("button", { type: "button" });
      button.setAttribute("aria-pressed", "false");
      const key = draw(button, "svg", { class: "key", width: 12, height: 12, viewBox: "-6 -6 12 12", "aria-hidden": "true" });
      draw(key, "path", { d: shapeOf(label, 4), style: `fill:${classColour(label)}` });
      button.append(name);
      button.onclick = () => {
        const pressed = button.getAttribute("aria-pressed") === "true";
        for (const other of list.children) other.setAttribute("aria-pressed", "false");
        button.setAttribute("aria-pressed", String(!pressed));
        redraw(pressed ? null : label);
      };
      list.append(button);
    });
    figure.append(list);
  };

  const maps = [...document.querySelectorAll("[data-map]")].map((figure) => {
    const map = data.maps[figure.dataset.map];
    const svg = draw(figure, "svg", { role: "img", "aria-label": figure.dataset.label });
    let focus = null;
    const redraw = () => {
      svg.replaceChildren();
      drawMap(svg, map, Math.max(260, Math.round(figure.clientWidth)), focus);
    };
    mapLegend(figure, map, (label) => { focus = label; redraw(); });
    redraw();
    return redraw;
  });
  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => maps.forEach((redraw) => redraw()), 120);
  });

  // ---- tables, copying, printing ----
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

  // Folded blocks are printed too.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((each) => { each.open = true; });
  });
  addEventListener("afterprint", () => folded.forEach((each) => { each.open = false; }));

  root.dataset.errors = errors.join("\n");
  root.dataset.ready = String(maps.length);
})();
