"""Spans of a trace as rows on one time axis. Pure; knows no terminal.

Clocks of processes differ: what another process did inside a span is moved into it, as a whole,
where its clock has it outside.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from baton.v1 import telemetry_pb2

MANY = 4
"""Parts of the same name in a row, of which more are shown as one."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line: a span, or several of the same name after each other."""

    name: str
    process: str
    depth: int
    start_ns: int
    """On the common axis."""
    end_ns: int
    seconds: float
    """How long it took by its own clock; of several, all together."""
    count: int
    notes: tuple[str, ...]
    """What else is worth a line: an error, retries."""


@dataclass(frozen=True, slots=True)
class _Part:
    span: telemetry_pb2.Span
    start_ns: int
    end_ns: int


Children = dict[bytes, list[telemetry_pb2.Span]]


def rows(spans: Sequence[telemetry_pb2.Span]) -> list[Row]:
    """The rows of a trace, each span's parts below it by their start."""
    known = {span.span_id for span in spans}
    children: Children = {}
    roots: list[telemetry_pb2.Span] = []
    for span in spans:
        inner = span.parent_span_id in known and span.parent_span_id != span.span_id
        (children.setdefault(span.parent_span_id, []) if inner else roots).append(span)
    tops = sorted((_part(span, 0) for span in roots), key=lambda part: part.start_ns)
    return [row for part in tops for row in _below([part], 0, children)]


def _below(group: Sequence[_Part], depth: int, children: Children) -> Iterator[Row]:
    """A row for `group`, and those of its parts."""
    yield _row(group, depth)
    inner = sorted(
        (one for part in group for one in _placed(part, children.pop(part.span.span_id, []))),
        key=lambda part: part.start_ns,
    )
    for some in _gathered(inner):
        yield from _below(some, depth + 1, children)


def _placed(parent: _Part, spans: Sequence[telemetry_pb2.Span]) -> Iterator[_Part]:
    """The spans inside `parent`, those of each process moved there together."""
    own_shift = parent.start_ns - _start(parent.span)
    by_process: dict[str, list[telemetry_pb2.Span]] = {}
    for span in spans:
        by_process.setdefault(span.process, []).append(span)
    for process, group in by_process.items():
        shift = own_shift
        if process != parent.span.process:
            first = min(map(_start, group)) + shift
            last = max(map(_end, group)) + shift
            if first < parent.start_ns:
                shift += parent.start_ns - first
            elif last > parent.end_ns:
                shift -= min(last - parent.end_ns, first - parent.start_ns)
        yield from (_part(span, shift) for span in group)


def _gathered(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    """Each part by itself, or many of the same name together."""
    names: dict[tuple[str, str], list[_Part]] = {}
    for part in parts:
        names.setdefault((part.span.name, part.span.process), []).append(part)
    groups = [
        some
        for group in names.values()
        for some in ([group] if len(group) > MANY else [[part] for part in group])
    ]
    yield from sorted(groups, key=lambda group: group[0].start_ns)


def _row(group: Sequence[_Part], depth: int) -> Row:
    first = group[0].span
    return Row(
        name=first.name,
        process=first.process,
        depth=depth,
        start_ns=group[0].start_ns,
        end_ns=max(part.end_ns for part in group),
        seconds=sum(part.end_ns - part.start_ns for part in group) / 1e9,
        count=len(group),
        notes=tuple(note for part in group for note in _notes(part.span)),
    )


def _notes(span: telemetry_pb2.Span) -> Iterator[str]:
    for event in span.events:
        if event.name in ("retry", "handed_off"):
            at = event.offset.ToNanoseconds() / 1e6
            details = ", ".join(event.attributes[key] for key in sorted(event.attributes))
            yield f"{event.name} at {at:.1f} ms: {details}"
    if span.error:
        yield f"failed: {span.error}"


def _part(span: telemetry_pb2.Span, shift_ns: int) -> _Part:
    return _Part(span, _start(span) + shift_ns, _end(span) + shift_ns)


def _start(span: telemetry_pb2.Span) -> int:
    return int(span.start.ToNanoseconds())


def _end(span: telemetry_pb2.Span) -> int:
    return _start(span) + max(0, int(span.duration.ToNanoseconds()))
