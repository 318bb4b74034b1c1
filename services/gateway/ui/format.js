// Numbers with their units, for people.

const NONE = "–";
const SPACE = "\u202f";

/** Three significant digits, no exponent. */
function three(value) {
  const size = Math.abs(value);
  if (size >= 100 || size === 0) return Math.round(value).toString();
  return value.toFixed(size >= 10 ? 1 : 2);
}

function scaled(value, steps, unit) {
  const [factor, prefix] = steps.find(([least]) => Math.abs(value) >= least * 0.9995) ?? steps.at(-1);
  return [three(value / factor), prefix + unit];
}

const TIMES = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
const SI = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
const BINARY = [[2 ** 40, "Ti"], [2 ** 30, "Gi"], [2 ** 20, "Mi"], [2 ** 10, "Ki"], [1, ""]];

/** A time as number and unit. */
export function time(seconds) {
  if (seconds === null || seconds === undefined) return [NONE, ""];
  if (seconds === 0) return ["0", "ms"];
  if (seconds >= 100) {
    const whole = Math.round(seconds);
    return [`${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`, "min"];
  }
  return scaled(seconds, TIMES, "");
}

const joined = ([number, unit]) => (unit ? number + SPACE + unit : number);

export const seconds = (value) => joined(time(value));

/** Without zeros at the end that say nothing: for round numbers such as targets and ticks. */
export const trimmed = (text) => text.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");

/** A count: all digits up to 9999. */
export function count(value) {
  if (value === null || value === undefined) return NONE;
  return Math.abs(value) < 10_000 ? three2(value) : joined(scaled(value, SI, ""));
}

const three2 = (value) => (Number.isInteger(value) ? String(value) : three(value));

export const rate = (value, unit) =>
  value === null || value === undefined ? NONE : `${count(value)}${SPACE}${unit}/s`;
export const flops = (value) => joined(scaled(value, SI, "FLOP/s"));
export const bytesRate = (value) => joined(scaled(value, SI, "B/s"));
export const bytes = (value) => joined(scaled(value, BINARY, "B"));

export function percent(share) {
  if (share === null || share === undefined) return NONE;
  const value = share * 100;
  // Not "100 %" where one was missed, nor "0 %" where one was not.
  const shown = value > 99 && value < 100 ? Math.floor(value * 10) / 10 : three(Math.max(value, 0));
  return `${value > 0 && value < 0.01 ? "<0.01" : Math.abs(value) >= 10 && value <= 99 ? Math.round(value) : shown}${SPACE}%`;
}

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

/** Time of day. */
export const clock = (unix) =>
  new Date(unix * 1000).toLocaleTimeString(undefined, { hour12: false });
