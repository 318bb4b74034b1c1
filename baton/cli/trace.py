"""`baton trace`: where the time of one request went, in all processes."""

import json
import re
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from baton.cli import waterfall
from baton.cli.connect import Connection, connects
from baton.cli.plain import plain_errors
from baton.cli.waterfall import Row
from baton.cli.wire_json import to_json
from baton.v1 import inference_pb2

_ANSWERS = re.compile("^(chat)?cmpl-")
"""Before a request's id, it is the id of the gateway's answer."""
_PIPE_WIDTH = 100
_PROCESS_WIDTH = 12
_NAME_WIDTH = 24
_TIME_WIDTH = 10
_LEAST_BAR = 10
_INDENT = "  "
_STYLES = {"queue": "yellow", "prefill": "cyan", "decode": "green", "kv": "magenta"}


@plain_errors
@connects
def trace(
    request: Annotated[
        str,
        typer.Argument(metavar="REQUEST_ID", help="A request's id, or a trace's 32 digits."),
    ],
    connection: Connection,
    as_json: Annotated[bool, typer.Option("--json", help="Print the spans as JSON.")] = False,
) -> None:
    """Show where the time of one request went, in all processes."""
    with connection.client() as client:
        answer = client.trace(_ANSWERS.sub("", request))
    if as_json:
        typer.echo(json.dumps(to_json(answer), indent=2))
    else:
        draw(answer, _console())


def draw(answer: inference_pb2.GetTraceResponse, console: Console) -> None:
    """Prints the waterfall."""
    rows = waterfall.rows(answer.spans)
    if not rows:
        return
    began = min(row.start_ns for row in rows)
    whole_ns = max(1, max(row.end_ns for row in rows) - began)
    processes = len({span.process for span in answer.spans})
    trace_id = answer.spans[0].trace_id.hex()
    console.print(
        f"trace {trace_id}: {whole_ns / 1e6:.1f} ms, {len(answer.spans)} spans of "
        f"{processes} processes",
        highlight=False,
        soft_wrap=True,
    )
    bar = max(_LEAST_BAR, console.width - _NAME_WIDTH - _PROCESS_WIDTH - _TIME_WIDTH - 4)
    for row in rows:
        console.print(_line(row, began, whole_ns, bar, _block(console)), no_wrap=True, crop=True)
        for note in row.notes:
            text = Text(f"{_INDENT * (row.depth + 1)}{note}", "red")
            text.truncate(console.width, overflow="ellipsis")
            console.print(text, no_wrap=True, crop=True)
    if answer.silent:
        console.print(f"silent: {', '.join(answer.silent)}", style="red", soft_wrap=True)


def _line(row: Row, began: int, whole_ns: int, width: int, block: str) -> Text:
    count = f" x{row.count}" if row.count > 1 else ""
    line = Text()
    line.append(_fitted(f"{_INDENT * row.depth}{row.name}{count}", _NAME_WIDTH) + " ")
    line.append(_fitted(row.process, _PROCESS_WIDTH) + " ", "dim")
    line.append(f"{row.seconds * 1e3:,.1f} ms".rjust(_TIME_WIDTH) + " ")
    before, length = _extent(row, began, whole_ns, width)
    line.append(" " * before + block * length, _STYLES.get(row.name.partition(".")[0], "blue"))
    return line


def _extent(row: Row, began: int, whole_ns: int, width: int) -> tuple[int, int]:
    """Columns before the row's bar, and of it: at least one, and none beyond the axis."""
    before = min(width - 1, (row.start_ns - began) * width // whole_ns)
    end = -(-(row.end_ns - began) * width // whole_ns)
    return before, max(1, min(end, width) - before)


def _fitted(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else f"{text[: width - 1]}~"


def _block(console: Console) -> str:
    return "█" if console.encoding.lower().startswith("utf") else "#"


def _console() -> Console:
    # A pipe has no width.
    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_WIDTH)
