// One request in full: what became of it, and its spans over all processes.

import { $, h } from "./dom.js";
import { clock, count, percent, seconds, trimmed } from "./format.js";
import { nice } from "./charts.js";
import { explain, facts, OUTCOMES, PARTS } from "./requests.js";

let opened = 0;

/** Opens the request; `ask(id)` fetches its trace. */
export async function openRequest(request, ask) {
  const dialog = $("request");
  const turn = ++opened;
  const spans = h("div", { class: "spans" }, h("p", { class: "dim" }, "Asking every process for its spans …"));
  dialog.replaceChildren(
    h("header", {},
      h("h2", { id: "request-title" }, request.id),
      h("button", { type: "button", autofocus: true, click: () => dialog.close() }, "Close")),
    h("p", { class: "lead" },
      h("span", { class: `outcome ${request.outcome}` }, OUTCOMES[request.outcome].join(" ")),
      " ", explain(request).join(" ")),
    h("div", { class: "columns" }, parts(request), numbers(request)),
    h("h3", {}, "Spans"), spans);
  if (!dialog.open) dialog.showModal();
  let answer;
  try {
    answer = await ask(request.trace_id || request.id);
  } catch (error) {
    answer = error;
  }
  if (turn === opened) spans.replaceChildren(...shown(answer));
}

function parts(request) {
  return h("table", { class: "parts" }, h("caption", {}, "Where the time went"),
    h("tbody", {}, ...request.parts.map((part) => h("tr", {},
      h("th", { scope: "row" }, h("span", { class: `swatch part-${part.name}` }), PARTS[part.name][0]),
      h("td", { class: "num" }, seconds(part.seconds)),
      h("td", { class: "num dim" }, percent(part.seconds / request.total_s)),
      h("td", { class: "dim" }, PARTS[part.name][1])))),
    h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, "Total"),
      h("td", { class: "num" }, seconds(request.total_s)), h("td"), h("td"))));
}

function numbers(request) {
  const target = (value) => (value === null ? "" : ` (target ${trimmed(seconds(value))})`);
  const rows = [
    ["Time to first token", seconds(request.ttft_s) + target(request.ttft_target_s)],
    ["predicted", seconds(request.predicted_ttft_s)],
    ["Inter-token latency", seconds(request.itl_s) + target(request.itl_target_s)],
    ["predicted", seconds(request.predicted_itl_s)],
    ...facts(request),
    ["Cached", `${count(request.cached_tokens)} of ${count(request.prompt_tokens)} prompt tokens`],
    ["Attempts", `prefill ${request.prefill_attempts}, decode ${request.decode_attempts}`],
    ["Class", request.class], ["Choices", count(request.choices)],
    ["Arrived", clock(request.arrival_s)],
    ["Trace", request.trace_id || "none"],
  ];
  return h("dl", { class: "facts" }, ...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function shown(answer) {
  if (answer instanceof Error)
    return [h("p", { class: "dim" }, `No spans: ${answer.message}`)];
  const rows = nested(answer.spans);
  if (!rows.length) return [h("p", { class: "dim" }, "No process remembers spans of this request.")];
  const span = nice(Math.max(1e-6, ...answer.spans.map((one) => one.start_s + one.seconds)));
  const silent = answer.silent.length ? [h("p", { class: "dim" }, `No answer from ${answer.silent.join(", ")}.`)] : [];
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => {
    const tick = h("span", { class: "mark" }, trimmed(seconds(span * share)));
    tick.style.left = `${share * 100}%`;
    return tick;
  });
  return [...silent,
    h("div", { class: "span axis", "aria-hidden": "true" }, h("span"), h("span", { class: "track ticks" }, ...ticks), h("span")),
    h("ol", { class: "tree" }, ...rows.map((row) => line(row, span)))];
}

/** Spans in the order of a tree, each with its depth; a parent elsewhere makes a root. */
function nested(spans) {
  const known = new Set(spans.map((one) => one.id));
  const children = new Map();
  for (const one of spans) {
    const parent = known.has(one.parent) && one.parent !== one.id ? one.parent : "";
    children.set(parent, [...(children.get(parent) ?? []), one]);
  }
  const rows = [];
  const walk = (id, depth) => {
    for (const one of children.get(id) ?? []) {
      rows.push({ ...one, depth });
      children.set(id, []);
      walk(one.id, depth + 1);
    }
  };
  const roots = children.get("") ?? [];
  for (const one of roots) {
    rows.push({ ...one, depth: 0 });
    walk(one.id, 1);
  }
  return rows;
}

const KINDS = [
  [/queue/, "queue"], [/fetch|pull|handoff/, "handoff"], [/publish/, "publish"], [/wait/, "wait"],
  [/decode/, "decode"], [/chunk|prefill|compute/, "compute"],
];

function line(row, span) {
  const kind = row.error ? "error" : (KINDS.find(([pattern]) => pattern.test(row.name)) ?? ["", "calls"])[1];
  const bar = h("span", { class: `part part-${kind}` });
  bar.style.left = `${(Math.max(0, row.start_s) / span) * 100}%`;
  bar.style.width = `${(row.seconds / span) * 100}%`;
  const events = row.events.map((event) => {
    const mark = h("span", { class: "event", title: `${event.name} at ${seconds(event.at_s)}` });
    mark.style.left = `${((row.start_s + event.at_s) / span) * 100}%`;
    return mark;
  });
  const name = h("span", { class: "name" }, row.name, h("span", { class: "dim process" }, row.process));
  name.style.paddingInlineStart = `${Math.min(row.depth, 12) * 14}px`;
  const details = [
    ...(row.error ? [["error", row.error]] : []),
    ["starts after", seconds(row.start_s)],
    ...Object.entries(row.attributes).sort(),
    ...row.events.map((event) => [event.name, `at ${seconds(event.at_s)}`]),
  ];
  return h("li", {}, h("details", {}, h("summary", { class: "span" }, name,
    h("span", { class: "track" }, bar, ...events), h("span", { class: "num" }, seconds(row.seconds))),
  h("dl", { class: "facts" }, ...details.flatMap(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]))));
}
