"""The HTTP server of a process's metrics and health, on threads of its own: it answers while the
event loop is busy. Plain HTTP, one answer a connection.

/live and /ready answer 200 or 503 with one line, every other path with the metrics.
"""

import contextlib
import socket
import threading
from collections.abc import Iterable
from http import HTTPStatus
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app

from services.common.telemetry.health import Health

_SILENCE_S = 5.0
"""A connection that says nothing for so long is closed."""
_STOP_S = 2.0


class ScrapeServer:
    """Serves from its making until `close`."""

    def __init__(self, address: str, registry: CollectorRegistry, health: Health) -> None:
        """Listens at `address` (host:port; port 0 takes a free one). Raises OSError where it
        can't."""
        host, _, port = address.rpartition(":")
        if not (host and port.isdecimal()):
            raise OSError(f"metrics address {address!r} is not of the form host:port")
        host = host.strip("[]")
        kind = _IPv6Server if ":" in host else _Server
        try:
            self._server = make_server(host, int(port), _app(registry, health), kind, _Handler)
        except OSError as error:
            raise OSError(f"cannot serve metrics at {address}: {error}") from error
        self._host = host
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """host:port, as bound."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._server.server_port}"

    def close(self) -> None:
        """Stops listening. Takes a moment; not on the event loop."""
        stopping = threading.Thread(target=self._server.shutdown, daemon=True)
        stopping.start()
        self._wake()
        stopping.join(_STOP_S)
        self._server.server_close()

    def _wake(self) -> None:
        """The server looks twice a second whether it is to stop; a connection makes it look."""
        with contextlib.suppress(OSError):
            socket.create_connection((self._host, self._server.server_port), 0.1).close()


def _app(registry: CollectorRegistry, health: Health) -> WSGIApplication:
    metrics: WSGIApplication = make_wsgi_app(registry)

    def app(environment: WSGIEnvironment, respond: StartResponse) -> Iterable[bytes]:
        match environment.get("PATH_INFO"):
            case "/live":
                problem = health.problem
                return _line(respond, problem or "live", good=not problem)
            case "/ready":
                return _line(respond, "ready" if (good := health.ready) else "not ready", good=good)
        return metrics(environment, respond)

    return app


def _line(respond: StartResponse, text: str, *, good: bool) -> Iterable[bytes]:
    status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
    respond(f"{status.value} {status.phrase}", [("content-type", "text/plain; charset=utf-8")])
    return [f"{text}\n".encode()]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _IPv6Server(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = _SILENCE_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's
        """Scrapes are not logged."""
