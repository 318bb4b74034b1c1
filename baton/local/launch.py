"""Becomes a service process: ties its life to its parent's, then replaces itself.

Run as a script, in an interpreter that has loaded nothing else:
`python -I -S launch.py PARENT_PID SIGNAL COMMAND ARGUMENT...`. On Linux the kernel then sends
the signal when the thread that started the process dies, even by SIGKILL; elsewhere the process
would live on, until `baton down` or the next `baton up` finds it in the state file.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, death_signal: int, command: list[str]) -> None:
    """Never returns."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != parent:  # it died before the line above
            sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
