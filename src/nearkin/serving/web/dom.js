// Helpers to make elements without a framework; text is never parsed as HTML.

export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

/** An element: `h("button", {class: "x", onclick: f, "aria-label": "…"}, child, "text")`. */
export function h(tag, given = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("aria-")) element.setAttribute(name, String(value)); // where false is not the same as nothing
    else if (value === false) continue;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...there(children));
  return element;
}

const there = (children) => children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);

/** Replace the children of an element; null children are left out. */
export const fill = (element, ...children) => element.replaceChildren(...there(children));

export function icon(name) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const use = document.createElementNS(space, "use");
  use.setAttribute("href", `static/icons.svg#${name}`);
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

export const button = (text, iconName, onclick, given = {}) =>
  h("button", { type: "button", class: "button", onclick, ...given }, iconName ? icon(iconName) : null, text ? h("span", {}, text) : null);

export const number = (value) => Number(value).toLocaleString("en");
export const plural = (count, one, many) => `${number(count)} ${count === 1 ? one : many}`;

/** A message that disappears by itself; with an action it stays longer. */
export function toast(text, action = null) {
  const line = h("div", { class: "toast" }, h("span", {}, text));
  const gone = () => line.remove();
  if (action) line.append(h("button", { type: "button", class: "link", onclick: () => { gone(); action.run(); } }, action.text));
  $("#toasts").append(line);
  setTimeout(gone, action ? 8000 : 4500);
}

/** Open a dialog with new content. A click outside, Escape or its cross closes it; the browser restores the focus. */
export function open(dialog, title, ...content) {
  dialog.replaceChildren(
    h("header", {}, h("h2", {}, title), h("button", { type: "button", class: "plain icon", "aria-label": "Close", onclick: () => dialog.close() }, icon("close"))),
    ...content,
  );
  if (!dialog.dataset.ready) {
    dialog.dataset.ready = "yes";
    dialog.addEventListener("pointerdown", (event) => {
      const box = dialog.getBoundingClientRect();
      const inside = event.clientX >= box.left && event.clientX <= box.right && event.clientY >= box.top && event.clientY <= box.bottom;
      if (event.target === dialog && !inside) dialog.close();
    });
  }
  if (!dialog.open) dialog.showModal();
}

export function save(content, name, type) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
