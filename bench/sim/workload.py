"""Requests of a trace, brought to a wanted rate.

A trace is JSON lines: `timestamp` (ms), `input_length` and `output_length` (tokens), `hash_ids`
(one for each 512-token block of the prompt; equal ids at equal positions mean an equal prefix).
`ttft_target` and `itl_target` (seconds), `class` (interactive or batch), `tenant` and `priority`
are optional, so that a recording of a live system is a trace as well.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Line:
    """A request as the trace tells it."""

    at_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    """Ids of its full blocks."""
    ttft_target_s: float | None
    itl_target_s: float | None
    batch: bool
    tenant: str
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of one copy of the trace, at its time in the simulation."""

    at_s: float
    line: Line
    copy: int

    def blocks(self, copies: int) -> tuple[int, ...]:
        """Ids of its full blocks, which no other copy has."""
        return tuple(block * copies + self.copy for block in self.line.blocks)


def load(path: Path) -> list[Line]:
    """The lines of a trace, in the order of their times. Raises ValueError for one that is not
    as told above."""
    with path.open() as file:
        lines = [_line(number, text) for number, text in enumerate(file, 1) if text.strip()]
    if not lines:
        raise ValueError(f"{path}: empty")
    return sorted(lines, key=lambda line: line.at_s)


def arrivals(
    lines: list[Line], rate: float, copies: int, count: int | None, seed: int
) -> list[Arrival]:
    """`count` requests (None: the whole trace) at `rate` a second.

    Each of the `copies` begins at another place of the trace and goes round; its time is
    scaled so that all together have the rate.
    """
    span_s = max(lines[-1].at_s - lines[0].at_s, 1e-3) * (len(lines) + 1) / len(lines)
    speed = rate * span_s / (len(lines) * copies)
    wanted = len(lines) * copies if count is None else min(count, len(lines) * copies)
    end_s = wanted / rate
    draw = random.Random(seed)
    found = [
        Arrival(at_s, line, copy)
        for copy in range(copies)
        for at_s, line in _turned(lines, span_s, speed, 0.0 if copies == 1 else draw.random())
        if at_s < end_s
    ]
    return sorted(found, key=lambda one: (one.at_s, one.copy))


def shaped(
    lines: Sequence[Line], rate: Callable[[float], float], end_s: float, seed: int
) -> list[Arrival]:
    """Requests at random moments up to `end_s`, at `rate` a second as it is then.

    Their lengths and prefixes are the trace's, line by line from its beginning; when it is
    through it begins again as another copy.
    """
    draw = random.Random(seed)
    most = 1.02 * max(rate(end_s * step / 4096) for step in range(4097))
    found: list[Arrival] = []
    at_s = draw.expovariate(most)
    while at_s < end_s:
        if draw.random() * most < rate(at_s):
            copy, place = divmod(len(found), len(lines))
            found.append(Arrival(at_s, lines[place], copy))
        at_s += draw.expovariate(most)
    return found


def _turned(
    lines: list[Line], span_s: float, speed: float, phase: float
) -> Iterator[tuple[float, Line]]:
    start_s = lines[0].at_s
    for line in lines:
        yield ((line.at_s - start_s - phase * span_s) % span_s) / speed, line


def _line(number: int, text: str) -> Line:
    fields = json.loads(text)
    try:
        input_tokens = max(1, int(fields["input_length"]))
        return Line(
            at_s=float(fields["timestamp"]) / 1000,
            input_tokens=input_tokens,
            output_tokens=max(1, int(fields["output_length"])),
            blocks=tuple(int(one) for one in fields["hash_ids"][: input_tokens // BLOCK_TOKENS]),
            ttft_target_s=_seconds(fields.get("ttft_target")),
            itl_target_s=_seconds(fields.get("itl_target")),
            batch=fields.get("class") == "batch",
            tenant=str(fields.get("tenant") or ""),
            priority=int(fields.get("priority") or 0),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"line {number} of the trace: {error!r}") from error


def _seconds(value: float | str | None) -> float | None:
    return None if value is None else float(value)
