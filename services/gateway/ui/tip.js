// One tooltip for the whole page, for pointers and for the keyboard's focus.

import { $, h } from "./dom.js";

let owner = null;

/** Shows a tip beside a point: {title, note, rows: [[label, value, class]], foot}. */
export function showTip(element, { title, note, rows, foot }, x, y) {
  const tip = $("tip");
  owner = element;
  tip.replaceChildren(
    h("p", { class: "tip-title" }, title),
    ...(note ? [h("p", { class: "dim" }, note)] : []),
    h("dl", {}, ...rows.flatMap(([label, value, name]) => [
      h("dt", {}, h("span", { class: `swatch ${name ?? ""}` }), label), h("dd", {}, value)])),
    ...(foot ?? []).map((line) => h("p", {}, line)),
  );
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const room = document.documentElement.clientWidth;
  const left = x + 14 + box.width > room ? Math.max(4, x - box.width - 14) : x + 14;
  const top = Math.min(Math.max(4, y), Math.max(4, innerHeight - box.height - 4));
  tip.style.left = `${Math.min(left, Math.max(4, room - box.width - 4))}px`;
  tip.style.top = `${top}px`;
}

export function hideTip(element) {
  if (element && owner !== element) return;
  owner = null;
  $("tip").hidden = true;
}

addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
});
addEventListener("scroll", () => hideTip(), { passive: true });
