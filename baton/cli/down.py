"""`baton down`: stops a Baton that runs on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from baton.cli.plain import plain_errors
from baton.local.down import stop_supervised
from baton.local.paths import RunDir


@plain_errors
def down(
    grpc_port: Annotated[int, typer.Option(help="Port of the Baton to stop.")] = 7600,
    run_dir: Annotated[
        Path | None, typer.Option(help="Its --run-dir, where it was given one.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait before killing what does not stop.")
    ] = 90.0,
) -> None:
    """Stop the Baton that runs on this machine."""
    place = RunDir(run_dir.absolute()) if run_dir is not None else RunDir.of_port(grpc_port)
    state = stop_supervised(place, timeout)
    if state is None:
        typer.echo(f"Baton is not running ({place.path})")
    else:
        typer.echo(f"stopped Baton at {state.address}")
