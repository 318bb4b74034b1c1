"""How commands end when they can't go on: one plain line on stderr and an exit code."""

import functools
import os
import sys
from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar

import typer

from baton import errors
from baton.local.problem import Problem

P = ParamSpec("P")
R = TypeVar("R")

FAILED = 1
INTERRUPTED = 130


def plain_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Turns errors meant for people into exit code 1, and Ctrl-C into 130; no tracebacks."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (errors.BatonError, Problem) as error:
            fail(describe(error))
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # whoever read the output has gone, such as `head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(FAILED) from None

    return run


def fail(message: str) -> NoReturn:
    """Ends the command with a line on stderr."""
    typer.echo(f"baton: {message}", err=True)
    raise typer.Exit(FAILED)


def describe(error: Exception) -> str:
    """An error in words, with what to do where that is known."""
    if not isinstance(error, errors.BatonError):
        return str(error)
    if error.reason == "UNREACHABLE":
        return f"{error.message.partition(': ')[0]}. Is Baton running? `baton up` starts it"
    if isinstance(error, errors.DeadlineExceeded):
        return "the deadline passed before the answer was complete"
    if error.retry_after is not None:
        return f"{error.message} (try again in {error.retry_after:.1f} s)"
    return error.message
