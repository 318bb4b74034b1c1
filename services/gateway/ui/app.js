// The page: polls what the gateway knows while it is open and visible, and shows it.

import { $, h, say } from "./dom.js";
import { drawTiles, drawVerdict, Charts } from "./overview.js";
import { Requests } from "./requests.js";
import { openRequest } from "./trace.js";
import { drawWorkers } from "./workers.js";

const EVERY_MS = 1000;
const SLOWEST_MS = 8000;
const PATIENCE_MS = 10_000;
const STALE_MS = 4000;
const KEY = "baton-key";

/** An answer that is not OK. */
class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const state = { last: 0, seenAt: 0, failures: 0, live: null, paused: false, held: [], anew: false, timer: 0, busy: false };
const charts = new Charts();
const requests = new Requests((request) => openRequest(request, (id) => ask(`data/trace/${encodeURIComponent(id)}`)));

async function ask(path) {
  const key = sessionStorage.getItem(KEY);
  const abort = AbortSignal.timeout(PATIENCE_MS);
  let answer;
  try {
    answer = await fetch(path, { headers: key ? { authorization: `Bearer ${key}` } : {}, signal: abort, cache: "no-store" });
  } catch (error) {
    throw new Error(error.name === "TimeoutError" ? "the gateway does not answer in time" : "the gateway cannot be reached");
  }
  if (answer.ok) return answer.json();
  const body = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, body.error?.message ?? `HTTP ${answer.status}`);
}

async function poll() {
  clearTimeout(state.timer);
  if (state.busy || document.hidden) return;
  state.busy = true;
  try {
    show(await ask(`data/live?after=${state.last}`));
    state.failures = 0;
  } catch (error) {
    if (error.status === 401 || error.status === 403) return askForKey(error);
    state.failures += 1;
    fail(error);
  } finally {
    state.busy = false;
  }
  state.timer = setTimeout(poll, Math.min(SLOWEST_MS, EVERY_MS * 2 ** Math.min(state.failures, 3)));
}

function show(live) {
  state.last = live.last_number;
  state.live = live;
  state.seenAt = performance.now();
  $("stale").hidden = true;
  $("key").hidden = true;
  document.body.classList.remove("locked");
  document.body.classList.add("ready");
  state.anew ||= live.restarted;
  state.held = [...(live.restarted ? [] : state.held), ...live.requests];
  if (!state.paused) draw();
  freshness();
}

/** Shows what came since the last time. */
function draw() {
  const { live, held, anew } = state;
  Object.assign(state, { held: [], anew: false });
  say($("model"), live.model || "no model is served");
  document.title = `${{ good: "✓ ", warn: "! ", bad: "✕ " }[live.verdict?.state] ?? ""}Baton${live.model ? ` · ${live.model}` : ""}`;
  drawVerdict(live);
  drawTiles(live);
  charts.draw(live);
  requests.add(held, anew, live.in_progress);
  drawWorkers(live);
  drawEmpty(live);
}

/** How to send a first request. */
function drawEmpty(live) {
  const empty = $("empty");
  const none = !requests.known.length && !requests.running.length;
  empty.hidden = !none;
  document.body.classList.toggle("fresh", none);
  if (!none || empty.dataset.model === live.model) return;
  empty.dataset.model = live.model;
  const body = JSON.stringify({ model: live.model, prompt: "Once upon a time", max_tokens: 32 });
  const key = sessionStorage.getItem(KEY) ? ` \\\n  -H "Authorization: Bearer $BATON_API_KEY"` : "";
  const line = `curl ${location.origin}${location.pathname.replace(/ui\/?$/, "")}v1/completions${key} \\\n` +
    `  -H 'Content-Type: application/json' \\\n  -d '${body.replaceAll("'", "'\\''")}'`;
  const copy = h("button", { type: "button", click: async () => {
    try {
      await navigator.clipboard.writeText(line); // there is none outside HTTPS and loopback
      say(copy, "Copied");
    } catch {
      say(copy, "Select to copy");
    }
    setTimeout(() => say(copy, "Copy"), 2000);
  } }, "Copy");
  empty.replaceChildren(
    h("h3", {}, live.running ? "The first requests are in progress" : "No request has come yet"),
    h("p", {}, "Send one, and it appears here:"),
    h("div", { class: "code" }, h("pre", {}, h("code", {}, line)), copy));
}

function askForKey(error) {
  const had = sessionStorage.getItem(KEY);
  document.body.classList.add("locked");
  $("stale").hidden = true;
  $("key").hidden = false;
  say($("key-why"), error.status === 403 ? "That key is valid, but not an operator's: it may not see other tenants' requests."
    : had ? "That key is not known." : "This gateway's routers have keys configured.");
  sessionStorage.removeItem(KEY);
  setDot("stale", "locked");
  $("key-input").focus();
}

function fail(error) {
  if (!state.live) {
    $("stale").hidden = false;
    say($("stale"), `No data: ${error.message}. Trying again.`);
  }
  state.why = error.message;
  freshness();
}

function freshness() {
  if (!$("key").hidden) return;
  const age = performance.now() - state.seenAt;
  if (state.live && state.failures && age > STALE_MS) {
    $("stale").hidden = false;
    say($("stale"), `What you see is ${Math.round(age / 1000)} s old: ${state.why}. Trying again.`);
  }
  if (state.failures) setDot("stale", state.live ? "stale" : "no data");
  else if (state.paused) setDot("paused", "paused");
  else if (state.live) setDot("live", "live");
}

function setDot(kind, words) {
  $("freshness").dataset.kind = kind;
  say($("freshness").querySelector(".words"), words);
}

function theme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const now = () => document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
  const label = () => {
    say($("theme"), now() === "dark" ? "Light" : "Dark");
    $("theme").setAttribute("aria-label", `Switch to the ${now() === "dark" ? "light" : "dark"} theme`);
  };
  $("theme").addEventListener("click", () => {
    const next = now() === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("baton-theme", next);
    } catch {
      // It holds for this visit only.
    }
    label();
  });
  dark.addEventListener("change", label);
  label();
}

$("pause").addEventListener("click", () => {
  state.paused = !state.paused;
  $("pause").setAttribute("aria-pressed", String(state.paused));
  say($("pause"), state.paused ? "Go on" : "Pause");
  if (!state.paused && state.live) draw();
  freshness();
});
$("key").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("key-input").value.trim());
  $("key-input").value = "";
  poll();
});
$("request").addEventListener("click", (event) => {
  if (event.target === $("request")) $("request").close();
});
document.addEventListener("visibilitychange", poll);
setInterval(freshness, 1000);
theme();
poll();
