// Charts over time, as inline SVG: lines or stacked bars, labelled where they end.

import { h, say, svg } from "./dom.js";
import { trimmed } from "./format.js";
import { hideTip, showTip } from "./tip.js";

const HEIGHT = 148;
const TOP = 10;
const BOTTOM = 20;
const LEFT = 50;
const RIGHT = 96;
const LABEL_GAP = 13;

/** The least round number that is not below `value`. */
export function nice(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10].find((one) => one * power >= value * 0.9999) * power;
}

/**
 * A chart. `lines` names its columns: [{key, label, class}], drawn in that order. `format` makes
 * text of a value; `stacked` draws bars upon each other. `update(columns, series, target)`.
 */
export class Chart {
  constructor({ title, hint, lines, format, stacked = false, floor = 0, none = "sampled while a page is open" }) {
    Object.assign(this, { title, lines, format, stacked, floor, none });
    this.latest = h("span", { class: "latest" });
    this.plot = h("div", { class: "plot" });
    this.element = h("figure", { class: "chart" },
      h("figcaption", {}, h("span", { class: "title" }, title),
        h("span", { class: "dim" }, hint), this.latest), this.plot);
    this.at = null;
    this.width = 0;
    new ResizeObserver(([entry]) => {
      this.width = Math.floor(entry.contentRect.width);
      this.draw();
    }).observe(this.plot);
    this.listen();
  }

  update(columns, series, target = null, latest = "") {
    this.columns = Object.fromEntries(this.lines.map(({ key }) => [key, columns[key].slice(-series.shown)]));
    Object.assign(this, { series, target });
    this.draw();
    const above = target !== null && target > this.top ? " (above)" : "";
    this.latest.classList.toggle("target", target !== null);
    say(this.latest, target === null ? latest : `target ${trimmed(this.format(target))}${above}`);
  }

  listen() {
    this.plot.tabIndex = 0;
    this.plot.setAttribute("role", "img");
    this.plot.addEventListener("pointermove", (event) => {
      const box = this.plot.getBoundingClientRect();
      const share = (event.clientX - box.left - LEFT) / (this.width - LEFT - RIGHT);
      this.point(Math.round(share * this.size - 0.5));
    });
    const leave = () => this.point(null);
    this.plot.addEventListener("pointerleave", leave);
    this.plot.addEventListener("blur", leave);
    this.plot.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || !this.columns) return;
      event.preventDefault();
      this.point((this.at ?? this.size) + step);
    });
  }

  get size() {
    return this.columns ? this.columns[this.lines[0].key].length : 0;
  }

  point(index) {
    this.at = index === null || !this.size ? null : Math.max(0, Math.min(this.size - 1, index));
    this.draw();
    if (this.at === null) return hideTip(this.plot);
    const { end_s: end, bucket_s: bucket } = this.series;
    const ago = (this.size - 1 - this.at) * bucket;
    const rows = this.lines.map(({ key, label, class: name }) =>
      [label, this.format(this.columns[key][this.at]), name]).reverse();
    const when = new Date((end - ago - bucket) * 1000).toLocaleTimeString(undefined, { hour12: false });
    const box = this.plot.getBoundingClientRect();
    showTip(this.plot, { title: this.title, note: `${when}, over ${bucket} s`, rows },
      box.left + this.x(this.at), box.top);
  }

  x(index) {
    return LEFT + ((index + 0.5) / this.size) * (this.width - LEFT - RIGHT);
  }

  y(value) {
    return HEIGHT - BOTTOM - (value / this.top) * (HEIGHT - BOTTOM - TOP);
  }

  draw() {
    if (!this.columns || this.width < 60) return;
    this.top = this.scale();
    this.empty = !this.lines.some(({ key }) => this.columns[key].some((value) => value !== null && (value || !this.stacked)));
    const drawn = [...this.grid(), ...(this.stacked ? this.bars() : this.curves())];
    if (this.target !== null && !this.empty) drawn.push(...this.goal());
    drawn.push(...this.labels());
    if (this.at !== null)
      drawn.push(svg("line", { class: "cursor", x1: this.x(this.at), x2: this.x(this.at), y1: TOP, y2: HEIGHT - BOTTOM }));
    this.plot.setAttribute("aria-label", this.words());
    this.plot.replaceChildren(svg("svg", {
      width: this.width, height: HEIGHT, viewBox: `0 0 ${this.width} ${HEIGHT}`, "aria-hidden": "true",
    }, ...drawn));
  }

  scale() {
    const each = this.lines.map(({ key }) => this.columns[key]);
    const sums = this.stacked
      ? each[0].map((_, index) => each.reduce((sum, one) => sum + (one[index] ?? 0), 0))
      : each.flat();
    const most = Math.max(this.floor, ...sums.filter((value) => value !== null));
    // A target far above everything would flatten it; then it is named and not drawn.
    const shown = this.target !== null && this.target <= most * 4;
    return nice(shown ? Math.max(most, this.target * 1.08) : most || this.target || 1);
  }

  grid() {
    const right = this.width - RIGHT;
    const drawn = [];
    for (const share of this.empty ? [0] : [0, 0.5, 1]) {
      const y = this.y(this.top * share);
      drawn.push(svg("line", { class: share ? "grid" : "base", x1: LEFT, x2: right, y1: y, y2: y }));
      drawn.push(svg("text", { class: "tick end", x: LEFT - 6, y: y + 4 }, share ? trimmed(this.format(this.top * share)) : "0"));
    }
    if (this.empty) drawn.push(svg("text", { class: "nothing", x: (LEFT + right) / 2, y: HEIGHT / 2 }, this.none));
    const minutes = (this.size * this.series.bucket_s) / 60;
    drawn.push(svg("text", { class: "tick", x: LEFT, y: HEIGHT - 5 }, `${Math.round(minutes)} min ago`));
    drawn.push(svg("text", { class: "tick end", x: right, y: HEIGHT - 5 }, "now"));
    return drawn;
  }

  curves() {
    return this.lines.flatMap(({ key, class: name }) => {
      const column = this.columns[key];
      const drawn = [];
      let run = [];
      const close = () => {
        if (run.length > 1) drawn.push(svg("polyline", { class: `curve ${name}`, points: run.join(" ") }));
        else if (run.length) drawn.push(svg("circle", { class: `spot ${name}`, cx: run[0][0], cy: run[0][1], r: 2.2 }));
        run = [];
      };
      column.forEach((value, index) => {
        if (value === null) close();
        else run.push([this.x(index).toFixed(1), this.y(value).toFixed(1)]);
      });
      close();
      return drawn;
    });
  }

  bars() {
    const width = Math.max(1, (this.width - LEFT - RIGHT) / this.size - 1);
    const drawn = [];
    for (let index = 0; index < this.size; index++) {
      let below = 0;
      for (const { key, class: name } of this.lines) {
        const value = this.columns[key][index] ?? 0;
        if (!value) continue;
        const y = this.y(below + value);
        drawn.push(svg("rect", {
          class: `block ${name}`, x: this.x(index) - width / 2, y, width,
          height: Math.max(1, this.y(below) - y),
        }));
        below += value;
      }
    }
    return drawn;
  }

  goal() {
    if (this.target > this.top) return [];
    const y = this.y(this.target);
    return [svg("line", { class: "goal", x1: LEFT, x2: this.width - RIGHT, y1: y, y2: y })];
  }

  /** Each line's name and last value, at the height where it ends. */
  labels() {
    const ends = this.stacked ? this.sums() : this.ends();
    ends.sort((one, other) => one.y - other.y);
    let least = TOP;
    for (const end of ends) {
      end.y = Math.max(end.y, least);
      least = end.y + LABEL_GAP;
    }
    let most = HEIGHT - BOTTOM;
    for (const end of [...ends].reverse()) {
      end.y = Math.min(end.y, most);
      most = end.y - LABEL_GAP;
    }
    const x = this.width - RIGHT + 5;
    return ends.flatMap(({ y, text, name }) => [
      svg("rect", { class: `block ${name}`, x, y: y - (this.stacked ? 4 : 1.5), width: 8, height: this.stacked ? 8 : 3 }),
      svg("text", { class: "end-label", x: x + 12, y: y + 4 }, text),
    ]);
  }

  ends() {
    return this.lines.flatMap(({ key, label, class: name }) => {
      const value = this.columns[key].findLast((one) => one !== null);
      if (value === undefined) return [];
      return [{ y: this.y(value), text: label ? `${label} ${this.format(value)}` : this.format(value), name }];
    });
  }

  sums() {
    let below = 0;
    return this.lines.flatMap(({ key, label, class: name }) => {
      const any = this.columns[key].some((value) => value);
      const last = this.columns[key].at(-1) ?? 0;
      const y = this.y(below + last / 2);
      below += last;
      return any ? [{ y, text: label, name }] : [];
    });
  }

  words() {
    const now = this.lines.map(({ key, label }) => {
      const value = this.columns[key].findLast((one) => one !== null);
      return `${label} ${value === undefined ? "unknown" : this.format(value)}`.trim();
    });
    const target = this.target === null ? "" : `; target ${this.format(this.target)}`;
    return `${this.title}: last ${now.join(", ")}${target}. Arrow keys read single values.`;
  }
}
