// Elements. Data becomes text nodes and attributes only, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `h("p", {class: "dim"}, "text", child)`. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const $ = (id) => document.getElementById(id);

/** Sets text where it changed, so that a selection stays and nothing is announced twice. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Makes `container` hold one child for each item, in their order; keeps those there were. */
export function keyed(container, items, keyOf, create, update) {
  const known = new Map([...container.children].map((child) => [child.dataset.key, child]));
  const used = new Set();
  let at = container.firstElementChild;
  for (const item of items) {
    let key = String(keyOf(item));
    while (used.has(key)) key += "+";
    used.add(key);
    let child = known.get(key);
    if (child) known.delete(key);
    else {
      child = create(item);
      child.dataset.key = key;
    }
    if (child === at) at = at.nextElementSibling;
    else container.insertBefore(child, at);
    update(child, item);
  }
  for (const child of known.values()) child.remove();
}

/** Buttons of which one is pressed. */
export function segments(container, choices, chosen, choose) {
  const buttons = choices.map(([value, label]) =>
    h("button", { type: "button", "data-value": value, click: () => press(value) }, label));
  const press = (value) => {
    for (const button of buttons)
      button.setAttribute("aria-pressed", String(button.dataset.value === value));
    choose(value);
  };
  container.replaceChildren(...buttons);
  press(chosen);
  return new Map(buttons.map((button) => [button.dataset.value, button]));
}
