"""`python -m services.router.constraint_process`: tells whether constraints make sense.

A process of its own, since a pattern can keep a processor busy for longer than anyone wants to
wait, and what computes it can't be interrupted: the system ends this process where one takes
too much, and the router starts another. Reads a JSON object a line, `id`, `kind`, `text` and
`texts`; answers one a line, with `id` and `error`, null where the constraint makes sense.
Ends with its input.
"""

import contextlib
import json
import os
import resource
import signal
import sys
from typing import Any

from services.common.constraints import Constraint, Kind
from services.common.constraints.grammars import GrammarError, TokenTable

CPU_S = 0.5
"""Most processor time for one constraint."""
MEMORY_BYTES = 2 << 30
"""Most memory in all."""
_NICE = 10


def main() -> None:
    """The process's entry point."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the router sees to it, and closes the input
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    table = TokenTable.of_bytes()
    _tell({"id": 0, "error": None})
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        # Nobody handles the signal: the system ends the process.
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        error = _error(table, asked)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _tell({"id": asked["id"], "error": error})


def _error(table: TokenTable, asked: dict[str, Any]) -> str | None:
    constraint = Constraint(Kind(asked["kind"]), asked["text"], tuple(asked["texts"]))
    try:
        table.check(constraint)
    except GrammarError as error:
        return str(error)
    return None


def _tell(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
