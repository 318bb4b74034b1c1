// The workers: what each has room for, what it is at, and how near its device's peaks.

import { $, h, keyed, say } from "./dom.js";
import { bytes, bytesRate, count, flops, percent, plural, seconds } from "./format.js";

const HEADS = ["Worker", "Batch", "KV blocks", "Decode step", "Prompt backlog", "Against the device's peaks", "Cost model"];
const RECENT = 10;
const past = new Map();

/** Shows the fleet's workers. */
export function drawWorkers(live) {
  const table = $("workers");
  if (!table.tHead) {
    table.append(h("thead", {}, h("tr", {}, ...HEADS.map((head) => h("th", { scope: "col" }, head)))), h("tbody"));
  }
  keyed(table.tBodies[0], live.workers, (one) => one.id, () => h("tr"), (row, one) => {
    const cells = [who(one), batch(one), blocks(one), step(one), backlog(one), achieved(one, live.now_s), cost(one)];
    row.className = one.state === "ready" ? "" : "away";
    row.replaceChildren(...cells.map((children, index) =>
      h(index ? "td" : "th", { "data-label": HEADS[index], scope: index ? null : "row" }, ...children)));
  });
  say($("workers-note"), live.workers.length ? "" : "No worker is known to the fleet.");
  say($("transfers"), live.transfers.map((one) => `Transfer service ${one.address}: ${one.error || one.state}, ` +
    `${plural(one.blobs, "blob")} in ${bytes(one.used_bytes)} of ${bytes(one.size_bytes)}`).join(" · "));
}

function who(one) {
  const state = one.state === "ready" ? ["✓", "ready"] : [one.state === "draining" ? "↓" : "✕", one.state];
  return [h("span", { class: "worker-id" }, one.id),
    h("span", { class: "dim" }, `${one.role}${one.dtype ? `, ${one.dtype}` : ""}`),
    h("span", { class: `state ${one.state === "ready" ? "good" : "bad"}` }, `${state[0]} ${state[1]}`),
    ...(one.error ? [h("span", { class: "bad" }, one.error)] : [])];
}

function batch(one) {
  const limit = one.sequence_limit && one.sequence_limit < one.capacity ? `limit ${one.sequence_limit} for its targets` : "";
  return [figure(count(one.running), `of ${count(one.capacity)}`),
    meter([["used", one.running]], one.capacity),
    h("span", { class: "dim" }, [one.waiting ? `${count(one.waiting)} waiting` : "", limit].filter(Boolean).join(", ") || "\u00a0")];
}

function blocks(one) {
  return one.kv.map((group) => h("div", { class: "group" },
    h("span", { class: "group-head" }, h("span", { class: "group-name" }, group.name),
      h("span", { class: "dim" }, `${bytes(group.total * group.block_bytes)}`)),
    meter([["used", group.used], ["cached", group.cached]], group.total),
    h("span", { class: "dim counts" }, key("used", `${count(group.used)} used`), key("cached", `${count(group.cached)} cached`),
      key("free", `${count(group.free)} free`))));
}

const key = (name, text) => h("span", { class: "pair" }, h("span", { class: `swatch kv-${name}` }), text);

function step(one) {
  if (!one.step_s) return [h("span", { class: "dim" }, "no step yet")];
  const held = one.itl_target_s === null ? "" : `tightest target ${seconds(one.itl_target_s)}`;
  return [figure(seconds(one.step_s), ""), h("span", { class: "dim" }, held || "\u00a0"),
    h("span", { class: "dim" }, `${count(one.context_tokens)} context tokens`)];
}

function backlog(one) {
  return [one.backlog_s ? figure(seconds(one.backlog_s), "of prompts") : h("span", { class: "dim" }, "none")];
}

/** FLOP/s and bytes/s of each phase: of the last seconds if it ran, else since the start. */
function achieved(one, now) {
  const history = (past.get(one.id) ?? []).filter(({ at }) => now - at < RECENT);
  history.push({ at: now, phases: one.phases });
  past.set(one.id, history);
  const rows = one.phases.filter(({ busy_s: busy }) => busy > 0).map((phase) => {
    const before = history[0].phases.find((other) => other.phase === phase.phase);
    const ran = before && phase.busy_s > before.busy_s;
    const from = ran ? before : { busy_s: 0, flops: 0, bytes: 0 };
    const busy = phase.busy_s - from.busy_s;
    const rates = { flops: (phase.flops - from.flops) / busy, bytes: (phase.bytes - from.bytes) / busy };
    return h("div", { class: "phase" },
      h("span", { class: "phase-name" }, phase.phase, h("span", { class: "dim" }, ran ? " now" : " since start")),
      against(rates.flops, one.peaks?.flops, flops), against(rates.bytes, one.peaks?.bytes, bytesRate));
  });
  return rows.length ? rows : [h("span", { class: "dim" }, "no step yet")];
}

function against(value, peak, format) {
  if (!peak) return h("span", {}, format(value));
  return h("span", { class: "against" }, meter([["peak", Math.min(value, peak)]], peak),
    h("span", {}, `${percent(value / peak)}`, h("span", { class: "dim" }, ` of ${format(peak)}`)));
}

function cost(one) {
  if (!one.cost) return [h("span", { class: "dim" }, "not measured")];
  const { base_s: base, prompt_token_s: token, prompt_pair_s: pair, sequence_s: sequence, context_token_s: context } = one.cost;
  const error = one.cost.relative_error;
  const terms = [[base, "a step"], [token, "a prompt token"], [pair, "a prompt pair"], [sequence, "a sequence"], [context, "a context token"]];
  return [h("ul", { class: "terms" }, ...terms.filter(([value]) => value > 0).map(([value, each]) =>
    h("li", {}, h("span", { class: "num" }, seconds(value)), ` ${each}`))),
  h("span", { class: error > 0.3 ? "warn" : "dim" }, error >= 1 ? "not measured yet" : `off by ${percent(error)} on average`)];
}

const figure = (large, small) => h("span", { class: "figure" }, h("strong", {}, large), small ? h("span", { class: "dim" }, ` ${small}`) : "");

function meter(filled, total) {
  const bar = h("span", { class: "meter", "aria-hidden": "true" });
  for (const [name, value] of filled) {
    const one = h("span", { class: `kv-${name}` });
    one.style.width = total ? `${(value / total) * 100}%` : "0";
    bar.append(one);
  }
  return bar;
}
