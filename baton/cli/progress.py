"""Shows how far a starting Baton is: bars on a terminal, a line for each step elsewhere."""

import time
from types import TracebackType
from typing import Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from baton.local.options import format_bytes
from baton.local.state import ProcessState, State


class Lines:
    """For logs and pipes."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._ready: set[str] = set()
        self._seen = False

    def update(self, state: State) -> None:
        if not self._seen:
            self._seen = True
            typer.echo(f"starting {', '.join(process.name for process in state.processes)}")
        for process in state.processes:
            if process.ready and process.name not in self._ready:
                self._ready.add(process.name)
                typer.echo(f"{process.name} ready after {time.monotonic() - self._started:.1f} s")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass


class Bars:
    """For terminals: one bar for each process."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(),
            TextColumn("{task.fields[note]:<24}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}

    def update(self, state: State) -> None:
        for process in state.processes:
            if process.name not in self._tasks:
                self._tasks[process.name] = self._progress.add_task(
                    process.name, total=None, note="starting"
                )
            self._show(self._tasks[process.name], process)

    def _show(self, task: TaskID, process: ProcessState) -> None:
        if process.ready:
            if not self._progress.tasks[task].finished:
                self._progress.update(task, total=1, completed=1, note="ready")
            return
        progress = process.progress()
        if progress is not None:
            done, total = progress
            note = f"loaded {format_bytes(done)} of {format_bytes(total)}"
            # Never full before it is ready: tables and caches are built after the last byte.
            self._progress.update(task, total=total, completed=min(done, total - 1), note=note)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()


def progress_view() -> Lines | Bars:
    """The one that fits where output goes."""
    console = Console()
    return Bars(console) if console.is_terminal else Lines()
