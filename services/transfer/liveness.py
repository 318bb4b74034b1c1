"""Whether a worker's process lives: by its id and the time it started, never by its silence."""

from collections.abc import Callable

import psutil

from baton import errors

IsGone = Callable[[], bool]
"""Whether a process has ended. Once True, always True."""
WatchProcess = Callable[[int], IsGone]
"""Begins to watch the process with an id, while it surely lives."""


def watch_process(pid: int) -> IsGone:
    """Watches a process of this host. Raises LayoutMismatch where it can't be seen."""
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess as error:
        raise errors.LayoutMismatch(
            f"the transfer service sees no process {pid}: worker and transfer service must "
            "share a process namespace (shareProcessNamespace in a pod, hostPID on a node)",
            reason="PROCESS_NOT_VISIBLE",
        ) from error

    def is_gone() -> bool:
        try:
            # is_running compares start times, so a reused id does not pass for the process.
            return not process.is_running() or process.status() in _ENDED
        except psutil.NoSuchProcess:
            return True

    return is_gone


_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
