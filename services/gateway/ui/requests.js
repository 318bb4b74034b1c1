// The newest requests, one bar each on a shared scale.

import { $, h, keyed, say, segments } from "./dom.js";
import { bytes, clock, count, plural, seconds, trimmed } from "./format.js";
import { nice } from "./charts.js";
import { hideTip, showTip } from "./tip.js";

const SHOWN = 50;
const KEPT = 400;

/** Parts of a request in the order in which they come, and what each is. */
export const PARTS = {
  queue: ["Queue", "waits for its turn"],
  wait: ["Prefill: wait", "room on the worker, cached KV fetched"],
  compute: ["Prefill: compute", "the prompt, up to the first token"],
  publish: ["Prefill: publish", "KV for the decode worker"],
  calls: ["Prefill: calls", "the way there and back"],
  prefill: ["Prefill", "from the turn to the first token"],
  handoff: ["Handoff", "from the first token to the second"],
  decode: ["Decode", "the rest of the tokens"],
  unfinished: ["No token yet", "from the turn on"],
};
const LEGEND = ["queue", "wait", "compute", "publish", "calls", "handoff", "decode"];

export const OUTCOMES = {
  running: ["…", "in progress"],
  completed: ["✓", "completed"],
  refused: ["⊘", "refused"],
  failed: ["✕", "failed"],
  cancelled: ["–", "cancelled"],
};

export const missed = (request) => request.ttft_held === false || request.itl_held === false;

/** What to know of a request, in a sentence or two. */
export function explain(request) {
  const { ttft_s: ttft, ttft_target_s: target, itl_s: itl, itl_target_s: step } = request;
  const said = [];
  if (request.outcome === "refused") said.push("Refused: its targets could not be held.");
  if (request.outcome === "failed") said.push(`Failed: ${request.reason || "unknown reason"}.`);
  if (request.outcome === "cancelled") said.push("Its client went away.");
  if (ttft !== null) {
    const before = request.parts.filter(({ start_s: start }) => start < ttft * 0.999);
    const most = before.reduce((one, other) => (other.seconds > one.seconds ? other : one), before[0]);
    const where = most ? `, most of it ${PARTS[most.name][0].toLowerCase()} (${seconds(most.seconds)})` : "";
    const held = target === null ? "" : ttft <= target ? `, within ${trimmed(seconds(target))}` : `, above its target of ${trimmed(seconds(target))}`;
    said.push(`First token after ${seconds(ttft)}${held}${where}.`);
  }
  if (itl !== null) {
    const held = step === null ? "" : itl <= step ? `, within ${trimmed(seconds(step))}` : `, above its target of ${trimmed(seconds(step))}`;
    said.push(`Then a token every ${seconds(itl)}${held}.`);
  }
  if (request.cached_tokens)
    said.push(`${count(request.cached_tokens)} of ${plural(request.prompt_tokens, "prompt token")} were cached.`);
  if (request.local) said.push("The prompt was computed beside a decode batch.");
  if (request.migrations) said.push(`It moved ${plural(request.migrations, "time")} with its KV.`);
  if (request.degraded) said.push("The workers of one role were gone.");
  return said;
}

/** Numbers of a request that are not times. */
export function facts(request) {
  const workers = [request.prefill_worker, request.decode_worker].filter(Boolean);
  return [
    ["Tokens", `${count(request.prompt_tokens)} in, ${count(request.output_tokens)} out`],
    ["Workers", workers.join(" → ") || "none"],
    ...(request.fetch_bytes ? [["KV fetched", `${bytes(request.fetch_bytes)} in ${seconds(request.fetch_s)}`]] : []),
    ...(request.tenant ? [["Tenant", request.tenant]] : []),
  ];
}

/** A row is made anew when another part begins. */
function keyOf(request) {
  const { id, outcome, parts } = request;
  const known = outcome === "running" ? parts.map(({ name }) => name).join() : request.arrival_s;
  return `${id} ${outcome} ${known}`;
}

export class Requests {
  constructor(open) {
    this.open = open;
    this.known = [];
    this.filter = "all";
    this.scale = "life";
    this.paused = false;
    this.running = [];
    this.list = $("requests");
    $("legend").replaceChildren(...LEGEND.map((name) =>
      h("li", { title: PARTS[name][1] }, h("span", { class: `swatch part-${name}` }), PARTS[name][0])),
    h("li", {}, h("span", { class: "goal-swatch" }), "target of the first token"));
    this.buttons = segments($("filters"), [
      ["all", "All"], ["missed", "Missed a target"],
      ...Object.keys(OUTCOMES).map((name) => [name, OUTCOMES[name][1]]),
    ], "all", (value) => { this.filter = value; this.draw(); });
    segments($("scales"), [["life", "Whole request"], ["first", "To first token"]], "life",
      (value) => { this.scale = value; this.draw(); });
    $("find").addEventListener("input", () => this.draw());
  }

  /** Takes what is new, oldest first, and those in progress; `restarted`: what was known is
   * another process's. */
  add(requests, restarted, running) {
    if (restarted) this.known = [];
    this.known = [...[...requests].reverse(), ...this.known].slice(0, KEPT);
    this.running = running;
    this.draw();
  }

  matches(request) {
    const wanted = $("find").value.trim().toLowerCase();
    const texts = [request.id, request.tenant, request.trace_id, request.prefill_worker, request.decode_worker];
    if (wanted && !texts.some((text) => text.toLowerCase().includes(wanted))) return false;
    if (this.filter === "missed") return missed(request);
    return this.filter === "all" || request.outcome === this.filter;
  }

  draw() {
    if (this.buttons) this.counts();
    const every = [...this.running].reverse().concat(this.known);
    const shown = every.filter((one) => this.matches(one)).slice(0, SHOWN);
    this.span = nice(Math.max(1e-3, ...shown.map((one) => this.length(one))));
    this.axis(shown.length > 0);
    keyed(this.list, shown, keyOf, (one) => this.create(one), (row, one) => this.update(row, one));
    $("legend").hidden = !every.length;
    if (every.length && !shown.length && !this.list.children.length)
      this.list.append(h("li", { class: "none dim", "data-key": "" }, "No request is like that."));
  }

  counts() {
    for (const [name, button] of this.buttons) {
      const every = this.running.concat(this.known);
      const number = name === "all" ? every.length
        : every.filter((one) => (name === "missed" ? missed(one) : one.outcome === name)).length;
      const label = name === "all" ? "All" : name === "missed" ? "Missed a target" : OUTCOMES[name][1];
      say(button, `${label} ${number}`);
    }
  }

  length(request) {
    if (this.scale === "life") return request.total_s;
    return Math.max(request.ttft_s ?? request.total_s, 0);
  }

  axis(any) {
    const axis = $("axis");
    axis.hidden = !any;
    const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => {
      const tick = h("span", { class: "mark" }, share ? trimmed(seconds(this.span * share)) : "arrival");
      tick.style.left = `${share * 100}%`;
      return tick;
    });
    axis.replaceChildren(h("span", {}, "ended"), h("span", {}, "request"), h("span", { class: "num" }, "tokens"),
      h("span", { class: "track ticks" }, ...ticks), h("span", { class: "num" }, "first token"), h("span", { class: "num" }, "per token"),
      h("span", { class: "num total" }, "total"));
  }

  create(request) {
    const [mark, word] = OUTCOMES[request.outcome];
    const track = h("span", { class: "track" });
    for (const part of request.parts) {
      const bar = h("span", { class: `part part-${part.name}` });
      track.append(bar);
    }
    if (request.ttft_target_s !== null) track.append(h("span", { class: "goal-mark" }));
    const late = request.ttft_held === false ? " late" : "";
    const slow = request.itl_held === false ? " late" : "";
    const row = h("li", { class: "item" }, h("button", {
      type: "button", class: `row ${request.outcome}`, "aria-label": this.words(request),
      click: () => { hideTip(); this.open(row.request); },
    },
    h("time", { class: "when" }, request.outcome === "running" ? "now" : clock(request.arrival_s + request.total_s)),
    h("span", { class: "who" }, h("span", { class: `outcome ${request.outcome}`, title: word }, mark),
      h("span", { class: "id" }, request.id)),
    h("span", { class: "num tokens" }),
    track,
    h("span", { class: `num first${late}` }),
    h("span", { class: `num step${slow}` }),
    h("span", { class: "num total" })));
    this.hover(row.firstElementChild, row);
    return row;
  }

  hover(button, row) {
    const show = (x, y) => {
      const { request } = row;
      showTip(button, {
        title: request.id,
        note: `${OUTCOMES[request.outcome][1]}, ${request.class}, arrived ${clock(request.arrival_s)}`,
        rows: [...request.parts.map((part) => [PARTS[part.name][0], seconds(part.seconds), `part-${part.name}`]),
          ["Total", seconds(request.total_s)], ...facts(request)],
        foot: explain(request),
      }, x, y);
    };
    button.addEventListener("pointermove", (event) => show(event.clientX, event.clientY + 12));
    button.addEventListener("pointerleave", () => hideTip(button));
    button.addEventListener("focus", () => {
      if (!button.matches(":focus-visible")) return;
      const box = button.getBoundingClientRect();
      show(box.left + box.width / 2, box.bottom + 4);
    });
    button.addEventListener("blur", () => hideTip(button));
  }

  update(row, request) {
    row.request = request;
    const cell = (name, text) => say(row.querySelector(`.${name}`), text);
    cell("tokens", `${count(request.prompt_tokens)} → ${count(request.output_tokens)}`);
    cell("first", request.ttft_s === null ? "none" : seconds(request.ttft_s) + (request.ttft_held === false ? " !" : ""));
    cell("step", seconds(request.itl_s) + (request.itl_held === false ? " !" : ""));
    cell("total", seconds(request.total_s));
    const track = row.querySelector(".track");
    const share = (value) => `${Math.min(100, (value / this.span) * 100)}%`;
    request.parts.forEach((part, index) => {
      const bar = track.children[index];
      const end = Math.min(this.span, part.start_s + part.seconds);
      const later = this.scale === "first" && (part.name === "handoff" || part.name === "decode");
      bar.hidden = later || part.start_s >= this.span;
      bar.style.left = share(part.start_s);
      bar.style.width = share(Math.max(0, end - part.start_s));
    });
    const goal = track.querySelector(".goal-mark");
    if (goal) {
      goal.hidden = request.ttft_target_s > this.span;
      goal.style.left = share(request.ttft_target_s);
    }
  }

  words(request) {
    return `${request.id}, ${OUTCOMES[request.outcome][1]}, ${seconds(request.total_s)}. ${explain(request).join(" ")}`;
  }
}
