"""The `baton` command: one module for each of its commands, all registered here."""

from typing import Annotated

import typer

from baton import __version__
from baton.cli import doctor, down, generate, key, status, trace, up

app = typer.Typer(
    help="Serves language models with prefill and decode in separate processes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("up")(up.up)
app.command("down")(down.down)
app.command("status")(status.status)
app.command("generate")(generate.generate)
app.command("doctor")(doctor.doctor)
app.command("key")(key.key)
app.command("trace")(trace.trace)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"baton {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Serves language models with prefill and decode in separate processes."""


def main() -> None:
    """Runs the command line; exits."""
    app(prog_name="baton")
