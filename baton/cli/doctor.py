"""`baton doctor`: what makes a running Baton slow, and what to change."""

import json
from pathlib import Path
from typing import Annotated

import typer

from baton.cli.connect import Connection, connects
from baton.cli.plain import FAILED, fail, plain_errors
from baton.doctor.diagnosis import Verdict, diagnose
from baton.doctor.picture import Wanted
from baton.doctor.snapshot import Snapshot, take
from baton.doctor.text import render


@plain_errors
@connects
def doctor(
    connection: Connection,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=3600, help="How long to look at it.")
    ] = 5.0,
    ttft_target: Annotated[
        float | None,
        typer.Option(min=0.001, help="Judge by this time to the first token, not by targets."),
    ] = None,
    itl_target: Annotated[
        float | None,
        typer.Option(min=0.0001, help="Judge by this time between tokens, not by targets."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON.")] = False,
    save: Annotated[
        Path | None, typer.Option(help="Keep what was seen in this file, as JSON.")
    ] = None,
    snapshot: Annotated[
        Path | None, typer.Option(help="Judge what `--save` kept; asks no router.")
    ] = None,
) -> None:
    """Say what makes a running Baton slow, and what to change.

    Exits with 0 where it is healthy or idle, with 1 where something is wrong or unreachable.
    """
    if snapshot is not None:
        seen = Snapshot.read(snapshot)
    else:
        with connection.client() as client:
            seen = take(client, seconds)
    if save is not None:
        try:
            save.write_text(seen.to_json() + "\n", encoding="utf-8")
        except OSError as error:
            fail(f"--save: {error}")
    diagnosis = diagnose(seen, Wanted(ttft_target, itl_target))
    typer.echo(json.dumps(diagnosis.to_json(), indent=2) if as_json else render(diagnosis))
    if diagnosis.verdict is Verdict.PROBLEM:
        raise typer.Exit(FAILED)
