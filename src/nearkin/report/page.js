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

  // Text only ever enters the page as text, never as HTML.
  const element = (name, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };

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
  root.dataset.ready = "true";
})();
