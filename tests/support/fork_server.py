"""Holds one service's imports, and forks processes that go on as that service.

Run as a script: `python -P fork_server.py SOCKET MODULE`. Each message on the socket asks for one
process: JSON with its arguments, environment, directory and death signal, and two descriptors,
its log and a pipe that gets its exit code. The answer is its pid. A process forked from here is
what `python -P -m MODULE` is after its imports: a session of its own, no other descriptors, its
own arguments and environment, and it ends as any interpreter does.

It ends when the socket closes. No thread may run before a fork; it sees to that itself.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import threading
from typing import Any

EXIT_CODE = struct.Struct("i")
MAX_MESSAGE = 1 << 17
_PR_SET_PDEATHSIG = 1


class ForkServer:
    """Forks, and tells of the children's ends."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._libc = ctypes.CDLL(None)
        self._own = os.getpid()
        self._children: dict[int, tuple[int, int]] = {}
        """Pid and exit pipe, by pidfd."""

    def serve(self) -> bool:
        """True in a forked process; False once nobody needs this server any more."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is not self._control:
                        selector.unregister(key.fileobj)
                        self._reap(key.fd)
                        continue
                    message, descriptors, _, _ = socket.recv_fds(self._control, MAX_MESSAGE, 2)
                    if not message:
                        return False
                    log, exit_pipe = descriptors
                    pid = os.fork()
                    if pid == 0:
                        selector.close()
                        self._become(json.loads(message), log, exit_pipe)
                        return True
                    os.close(log)
                    pidfd = os.pidfd_open(pid)
                    self._children[pidfd] = pid, exit_pipe
                    selector.register(pidfd, selectors.EVENT_READ)
                    self._control.send(str(pid).encode())

    def _reap(self, pidfd: int) -> None:
        pid, exit_pipe = self._children.pop(pidfd)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(BrokenPipeError):
            os.write(exit_pipe, EXIT_CODE.pack(os.waitstatus_to_exitcode(status)))
        os.close(exit_pipe)
        os.close(pidfd)

    def _become(self, order: dict[str, Any], log: int, exit_pipe: int) -> None:
        self._libc.prctl(_PR_SET_PDEATHSIG, order["death_signal"])
        if os.getppid() != self._own:  # it died before the line above
            os._exit(1)
        os.setsid()
        os.dup2(log, 1)
        os.dup2(log, 2)
        for pidfd, (_, other) in self._children.items():
            os.close(pidfd)
            os.close(other)
        os.close(log)
        os.close(exit_pipe)
        self._control.close()
        os.chdir(order["directory"])
        os.environ.clear()
        os.environ.update(order["environment"])
        sys.argv[1:] = order["arguments"]


def main(descriptor: int, module: str) -> bool:
    """Whether this is a forked process now, which is to run the module."""
    importlib.import_module(f"{module}.__main__")
    del sys.modules[f"{module}.__main__"]  # it runs in each process, as `__main__`
    threads = os.listdir("/proc/self/task")
    if len(threads) > 1 or threading.active_count() > 1:
        sys.exit(f"the imports of {module} start threads, which a fork would lose")
    gc.collect()
    gc.freeze()  # forks share the memory of what was imported
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with socket.socket(fileno=descriptor) as control:
        control.send(b"ready")
        return ForkServer(control).serve()


if __name__ == "__main__":
    name = sys.argv[2]
    if main(int(sys.argv[1]), name):
        runpy.run_module(name, run_name="__main__", alter_sys=True)
