"""What a request's trailing metadata tell: why it was as fast as it was."""

from services.router.report import Outcome, Report
from services.router.report_messages import report_message

REPORT = "baton-report-bin"
"""A RequestReport."""
EXPLANATION = "baton-explanation"
"""A line for people."""
TRACE_ID = "baton-trace-id"
"""32 hexadecimal digits."""


def trailing_metadata(report: Report) -> tuple[tuple[str, str | bytes], ...]:
    """All of it."""
    told: list[tuple[str, str | bytes]] = [
        (REPORT, report_message(report).SerializeToString()),
        (EXPLANATION, explanation(report)),
    ]
    if report.trace_id:
        told.append((TRACE_ID, report.trace_id.hex()))
    return tuple(told)


def explanation(report: Report) -> str:
    """One line of printable ASCII."""
    parts = [*_beginning(report), *_going_on(report)]
    if report.outcome is not Outcome.COMPLETED:
        parts.append(f"{report.outcome.value}{f' ({report.reason})' if report.reason else ''}")
    line = "; ".join(parts)
    return "".join(character if " " <= character <= "~" else "?" for character in line)


def _beginning(report: Report) -> list[str]:
    timings, placement, usage = report.timings, report.placement, report.usage
    if placement is None:
        return [f"queue {_ms(timings.total)}", "never placed"]
    where = timings.prefill_worker or "no worker"
    beside = ", beside its decode batch" if placement.local else ""
    degraded = ", a role is gone" if placement.degraded else ""
    cached = f"{usage.cached_tokens} of {usage.prompt_tokens} tokens cached"
    parts = [
        f"queue {_ms(timings.queue)}",
        f"prefill {_ms(timings.prefill)} on {where} ({cached}{beside}{degraded})",
    ]
    if usage.completion_tokens:
        predicted = _ms(timings.predicted_ttft)
        parts.append(f"ttft {_ms(timings.time_to_first_token)}, predicted {predicted}")
    return parts


def _going_on(report: Report) -> list[str]:
    timings = report.timings
    parts = []
    if timings.decode_worker is not None:
        parts.append(f"decode on {timings.decode_worker}")
    if report.itl_s is not None:
        parts.append(f"itl {_ms(report.itl_s)}, predicted {_ms(timings.predicted_itl)}")
    if timings.handoff_gap is not None:
        parts.append(f"handoff gap {_ms(timings.handoff_gap)}")
    attempts = f"attempts: {timings.prefill_attempts} prefill, {timings.decode_attempts} decode"
    moved = f", {timings.migrations} moves" if timings.migrations else ""
    return [*parts, f"{attempts}{moved}"]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
