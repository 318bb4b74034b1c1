// What to know in ten seconds: the verdict, the large numbers, the charts.

import { Chart } from "./charts.js";
import { $, h, keyed, say } from "./dom.js";
import { PARTS } from "./requests.js";
import { count, percent, plural, rate, seconds, time, trimmed } from "./format.js";

const MARKS = { good: "✓", warn: "!", bad: "✕", unknown: "·" };

/** The doctor's words; what the fleet itself says comes first. */
export function drawVerdict(live) {
  const element = $("verdict");
  const { state, headline, findings } = verdictOf(live);
  element.dataset.state = state;
  say(element.querySelector(".mark"), MARKS[state]);
  say(element.querySelector(".words"), headline);
  keyed(element.querySelector(".findings"), findings.filter((one) => one.title !== headline || one.evidence.length),
    (one) => one.code, finding, (row, one) => {
      row.dataset.state = one.state;
      say(row.querySelector(".mark"), MARKS[one.state]);
      say(row.querySelector(".title"), one.title === headline ? "" : one.title);
      say(row.querySelector(".detail"), one.evidence.join("; "));
      const advice = row.querySelector(".advice");
      if (advice.dataset.said === one.advice.join("\n")) return;
      advice.dataset.said = one.advice.join("\n");
      advice.replaceChildren(...one.advice.map((line) => h("span", {}, "→ ", ...coded(line))));
    });
}

/** Text with what is between backticks as code. */
const coded = (text) => text.split("`").map((piece, index) => (index % 2 ? h("code", {}, piece) : piece));

const finding = () => h("div", { class: "finding" }, h("span", { class: "mark", "aria-hidden": "true" }),
  h("strong", { class: "title" }), h("span", { class: "detail" }), h("span", { class: "advice" }));

function verdictOf(live) {
  const findings = [];
  const add = (title, detail) => findings.push({ code: title, state: "bad", title, evidence: detail ? [detail] : [], advice: [] });
  if (live.problem) add("A router does not answer.", live.problem);
  if (!live.redis_available) add("Redis does not answer.", "Routers try the workers that they know.");
  if (live.degraded) add("Degraded.", live.degraded);
  const away = live.workers.filter((one) => one.state !== "ready" && one.state !== "draining");
  if (away.length) add(`${away.map((one) => one.id).join(", ")}: no answer.`, away[0].error);
  const broken = findings.length > 0;
  const doctor = live.verdict;
  if (doctor) findings.push(...doctor.findings);
  if (!live.workers.length) return { state: "bad", headline: "No worker is alive.", findings };
  if (broken) return { state: "bad", headline: findings[0].title, findings };
  if (doctor) return { state: doctor.state, headline: doctor.headline, findings };
  return { state: "unknown", headline: "The doctor has not seen enough yet.", findings };
}

/** The row of large numbers. */
export function drawTiles(live) {
  const { summary } = live;
  const roles = (role) => live.workers.filter((one) => one.role === role);
  const alive = (ones) => ones.filter((one) => one.state === "ready").length;
  const fleet = ["prefill", "decode"].filter((role) => roles(role).length)
    .map((role) => [`${alive(roles(role))}/${roles(role).length}`, "", role]);
  const all = live.workers.length > 0 && alive(live.workers) === live.workers.length;
  const tiles = [
    { key: "goodput", title: "Goodput", figures: [[count(summary.good_per_s), "/s", "requests in time"]], state: share(summary.good_share, 0.9),
      note: summary.ended ? `${percent(summary.good_share)} met every target` : "no request ended", long: summary.ended ? `of ${plural(summary.ended, "request")}, last ${summary.window_s} s` : `in the last ${summary.window_s} s` },
    { key: "now", title: "In progress", figures: [[count(live.running), "", "running"], [count(live.waiting), "", "waiting"]], state: "none",
      note: !live.waiting ? "nothing waits" : live.queued_work_s ? `${seconds(live.queued_work_s)} of prompts wait` : "in the queue", long: plural(live.routers, "router") },
    { ...latency("ttft", "Time to first token", summary.ttft), split: summary.ttft_parts },
    latency("itl", "Inter-token latency", summary.itl),
    { key: "workers", title: "Workers alive", figures: fleet.length ? fleet : [["0", "", "workers"]], state: all ? "good" : "bad",
      note: all ? "every worker answers" : "not every worker answers", long: live.redis_available ? "Redis answers" : "Redis does not answer" },
  ];
  keyed($("tiles"), tiles, (one) => one.key, tile, fillTile);
}

function latency(name, title, { p50, p95, p99, target_s: target, held_share: held, count: number }) {
  const over = (value) => value !== null && target !== null && value > target;
  return {
    key: name, title, state: held === null ? "none" : over(p95) ? "bad" : over(p99) ? "warn" : "good",
    figures: [p50, p95, p99].map((value, index) => [...time(value), ["p50", "p95", "p99"][index], over(value)]),
    note: held === null ? (number ? "no target" : "no request ended") : `${percent(held)} in time`,
    long: target === null ? "\u00a0" : `target ${trimmed(seconds(target))}`,
  };
}

const share = (held, least) => (held === null ? "none" : held >= least ? "good" : "bad");

const tile = () => h("div", { class: "tile" }, h("h2"), h("div", { class: "figures" }), h("p", { class: "note" }), h("div", { class: "split", hidden: true, "aria-hidden": "true" }), h("p", { class: "long dim" }));

/** Where the first token's time goes, as a bar and in words. */
function fillSplit(element, parts) {
  const known = Object.entries(parts).filter(([, value]) => value > 0);
  const sum = known.reduce((all, [, value]) => all + value, 0);
  const bar = element.querySelector(".split");
  bar.hidden = !known.length;
  bar.replaceChildren(...known.map(([name, value]) => {
    const one = h("span", { class: `part-${name}` });
    one.style.width = `${(value / sum) * 100}%`;
    return one;
  }));
  if (!known.length) return "";
  const most = [...known].sort(([, one], [, other]) => other - one).slice(0, 2);
  return most.map(([name, value]) => `${PARTS[name][0].replace("Prefill: ", "").toLowerCase()} ${percent(value / sum)}`).join(", ");
}

function fillTile(element, { title, figures, state, note, long, split = {} }) {
  element.dataset.state = state;
  say(element.querySelector("h2"), title);
  const mark = { good: "✓ ", warn: "! ", bad: "✕ " }[state] ?? "";
  say(element.querySelector(".note"), mark + note);
  const where = fillSplit(element, split);
  say(element.querySelector(".long"), where ? `${long} · ${where}` : long);
  keyed(element.querySelector(".figures"), figures.map((one, index) => ({ one, index })), ({ index }) => index,
    () => h("span", { class: "big" }, h("strong"), h("span", { class: "unit" }), h("span", { class: "dim name" })),
    (row, { one }) => {
      const [number, unit, name = "", over = false] = one;
      row.classList.toggle("over", over);
      say(row.querySelector("strong"), number);
      say(row.querySelector(".unit"), unit);
      say(row.querySelector(".name"), over ? `${name} ✕ late` : name);
    });
}

const PERCENTILES = [{ key: "p50", label: "p50", class: "s-low" }, { key: "p95", label: "p95", class: "s-mid" }, { key: "p99", label: "p99", class: "s-high" }];

/** Buckets to draw: whole minutes back to the first that knows anything. */
function shown(series) {
  const minute = Math.round(60 / series.bucket_s);
  const columns = [series.ttft.p50, series.waiting, series.output_tokens];
  const zeros = Object.values(series.outcomes);
  const size = series.waiting.length;
  let first = 0;
  while (first < size && columns.every((one) => one[first] === null) && zeros.every((one) => !one[first])) first += 1;
  return Math.min(size, Math.max(1, Math.ceil((size - first) / minute)) * minute);
}

/** The charts, each made once. */
export class Charts {
  constructor() {
    const numbers = (value) => (value === null ? "–" : count(value));
    const none = "no request ended in these minutes";
    this.ttft = new Chart({ title: "Time to first token", hint: "of requests that ended", none, lines: PERCENTILES, format: seconds });
    this.itl = new Chart({ title: "Inter-token latency", hint: "mean of each request", none, lines: PERCENTILES, format: seconds });
    this.ended = new Chart({
      title: "Requests", hint: "ended, a second", none, stacked: true, floor: 0.5, format: numbers,
      lines: ["completed", "refused", "failed", "cancelled"].map((name) => ({ key: name, label: name, class: `o-${name}` })),
    });
    this.queue = new Chart({ title: "Queue", hint: "requests that wait for a turn", floor: 1, format: numbers,
      lines: [{ key: "waiting", label: "waiting", class: "s-queue" }] });
    this.prompts = new Chart({ title: "Prompt tokens", hint: "computed, a second", floor: 1, format: numbers,
      lines: [{ key: "prompt_tokens", label: "", class: "s-compute" }] });
    this.output = new Chart({ title: "Output tokens", hint: "sampled, a second", floor: 1, format: numbers,
      lines: [{ key: "output_tokens", label: "", class: "s-decode" }] });
    $("charts").replaceChildren(...Object.values(this).map((one) => one.element));
  }

  draw({ series, summary, waiting }) {
    series.shown = shown(series);
    const last = (column) => column.findLast((value) => value !== null) ?? null;
    this.ttft.update(series.ttft, series, summary.ttft.target_s);
    this.itl.update(series.itl, series, summary.itl.target_s);
    const all = Object.values(series.outcomes).reduce((sum, one) => sum + one.at(-1), 0);
    this.ended.update(series.outcomes, series, null, `${count(all)}/s`);
    this.queue.update(series, series, null, plural(waiting, "request"));
    this.prompts.update(series, series, null, rate(last(series.prompt_tokens), "tokens"));
    this.output.update(series, series, null, rate(last(series.output_tokens), "tokens"));
  }
}
