// A box on the query picture: only its content is searched for. It is given in shares of the picture.

import { h } from "./dom.js";

const LEAST = 0.04;
const within = (value) => Math.min(1, Math.max(0, value));

/** A picture on which a box can be drawn; `onbox` gets [x, y, w, h], or null for the whole picture. */
export function boxed(image, crop, onbox) {
  const box = h("div", { class: "box", tabindex: 0, role: "group", "aria-label": "Part to search for. Arrow keys move it, with Shift they resize it, Delete removes it" });
  const draw = (shares) => {
    box.hidden = !shares;
    frame.classList.toggle("has-box", Boolean(shares));
    if (!shares) return;
    const [x, y, w, height] = shares;
    Object.assign(box.style, { left: `${x * 100}%`, top: `${y * 100}%`, width: `${w * 100}%`, height: `${height * 100}%` });
  };
  const frame = h("div", { class: "frame" }, image, box);
  let current = crop;
  draw(current);

  const at = (event) => {
    const area = frame.getBoundingClientRect();
    return [within((event.clientX - area.left) / area.width), within((event.clientY - area.top) / area.height)];
  };
  frame.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    event.preventDefault();
    frame.setPointerCapture(event.pointerId);
    const [x0, y0] = at(event);
    let drawn = null;
    const move = (moved) => {
      const [x, y] = at(moved);
      const size = [Math.abs(x - x0), Math.abs(y - y0)];
      drawn = size[0] < LEAST || size[1] < LEAST ? null : [Math.min(x, x0), Math.min(y, y0), ...size];
      draw(drawn ?? current);
    };
    const end = () => {
      frame.removeEventListener("pointermove", move);
      frame.removeEventListener("pointerup", end);
      frame.removeEventListener("pointercancel", end);
      if (drawn) onbox((current = drawn));
    };
    frame.addEventListener("pointermove", move);
    frame.addEventListener("pointerup", end);
    frame.addEventListener("pointercancel", end);
  });

  let settle = 0;
  box.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (step) {
      let [x, y, w, height] = current;
      if (event.shiftKey) {
        w = Math.min(1 - x, Math.max(LEAST, w + step[0] * 0.05));
        height = Math.min(1 - y, Math.max(LEAST, height + step[1] * 0.05));
      } else {
        x = Math.min(1 - w, Math.max(0, x + step[0] * 0.05));
        y = Math.min(1 - height, Math.max(0, y + step[1] * 0.05));
      }
      draw((current = [x, y, w, height]));
      clearTimeout(settle);
      settle = setTimeout(() => onbox(current), 400);
    } else if (event.key === "Delete" || event.key === "Backspace") {
      onbox(null);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  });
  return frame;
}
