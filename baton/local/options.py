"""What `baton up` was asked for, and back again as arguments for a copy of itself."""

from dataclasses import dataclass, field
from pathlib import Path

from baton.local.guard import Guard
from baton.local.paths import RunDir

MEBIBYTE = 1024 * 1024
_UNITS = {"": 1, "B": 1, "KIB": 1024, "MIB": MEBIBYTE, "GIB": 1024 * MEBIBYTE}


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What to run."""

    model: str = "demo"
    """`demo`, a directory, or a .gguf file."""
    name: str | None = None
    """Name under which the model is served; None: after its file."""
    chat_template: Path | None = None
    """File of a chat template to take instead of the model's."""
    prefill: int | None = None
    """Prefill workers; None: one, but none when aggregated."""
    decode: int = 1
    aggregated: bool = False
    hosts: int = 1
    """Transfer services, each with memory of its own, with the workers split among them."""
    routers: int = 1
    """Routers that share one Redis; the first one serves at `grpc_port`, the others anywhere."""
    planner: bool = False
    """Whether a planner starts further workers under load, and stops them again."""
    max_prefill: int | None = None
    """Most prefill workers under a planner; None: twice as many as at the start."""
    max_decode: int | None = None
    threads: int | None = None
    """Compute threads of each worker; None: its share of the cores, were there as many workers as
    there can be."""
    dtype: str = "bfloat16"
    redis: str | None = None
    """URL of a Redis; None: an embedded one."""
    fleet: str | None = None
    """Name of the fleet in Redis; None: one of this machine and port alone."""
    host: str = "127.0.0.1"
    grpc_port: int = 7600
    http_port: int | None = 8000
    """Where the gateway serves; None: there is none."""
    kv_bytes: int = 512 * MEBIBYTE
    """KV memory of each worker."""
    segment_bytes: int = 256 * MEBIBYTE
    """Shared memory of each worker."""
    block_size: int = 16
    ttft_target: float = 10.0
    """Seconds to the first token for interactive requests that set no target of their own."""
    grace: float = 10.0
    """Seconds that running requests may take when all stops."""
    directory: Path | None = None
    """Where state and logs go; None: a directory of the port."""
    guard: Guard = field(default_factory=Guard)
    service_flags: tuple[str, ...] = ()
    """Further flags of services, such as `router:--max-waiting=4`; `worker:` is both roles."""

    @property
    def prefill_workers(self) -> int:
        if self.prefill is not None:
            return self.prefill
        return 0 if self.aggregated else 1

    @property
    def workers(self) -> int:
        return self.prefill_workers + self.decode

    @property
    def most_prefill(self) -> int:
        """Prefill workers that there can be."""
        return _most(self.prefill_workers, self.max_prefill, self.planner)

    @property
    def most_decode(self) -> int:
        return _most(self.decode, self.max_decode, self.planner)

    @property
    def most_workers(self) -> int:
        return self.most_prefill + self.most_decode

    @property
    def run_dir(self) -> RunDir:
        if self.directory is not None:
            return RunDir(self.directory.absolute())
        return RunDir.of_port(self.grpc_port)

    @property
    def address(self) -> str:
        """Where clients on this machine reach it: the first router's."""
        return self.reachable(f"{self.host}:{self.grpc_port}")

    @property
    def http_address(self) -> str | None:
        """Where HTTP clients on this machine reach it."""
        return None if self.http_port is None else self.reachable(f"{self.host}:{self.http_port}")

    def reachable(self, address: str) -> str:
        """Where clients on this machine reach what listens at `address`."""
        host, _, port = address.rpartition(":")
        return f"{'127.0.0.1' if host in ('0.0.0.0', '[::]') else host}:{port}"

    def arguments(self) -> list[str]:
        """The options of `baton up` that mean the same."""
        flags: dict[str, object] = {
            "--model": self.model,
            "--name": self.name,
            "--chat-template": self.chat_template,
            "--prefill": self.prefill,
            "--decode": self.decode,
            "--hosts": self.hosts,
            "--routers": self.routers,
            "--max-prefill": self.max_prefill,
            "--max-decode": self.max_decode,
            "--threads": self.threads,
            "--dtype": self.dtype,
            "--redis": self.redis,
            "--fleet": self.fleet,
            "--host": self.host,
            "--grpc-port": self.grpc_port,
            "--http-port": self.http_port,
            "--kv-memory": self.kv_bytes,
            "--shared-memory": self.segment_bytes,
            "--block-size": self.block_size,
            "--ttft-target": self.ttft_target,
            "--grace": self.grace,
            "--run-dir": self.directory,
        }
        arguments = [f"{flag}={value}" for flag, value in flags.items() if value is not None]
        arguments += ["--aggregated"] if self.aggregated else []
        arguments += ["--planner"] if self.planner else []
        arguments += ["--no-gateway"] if self.http_port is None else []
        arguments += self.guard.arguments()
        return [*arguments, *(f"--service-flag={flag}" for flag in self.service_flags)]


def _most(first: int, most: int | None, planner: bool) -> int:
    if not planner:
        return first
    return 2 * first if most is None else most


def parse_bytes(text: str) -> int:
    """A size such as `512MiB`, `1.5 GiB` or plain bytes. Raises ValueError in plain words."""
    number = text.strip().rstrip("BbIiKkMmGg").strip()
    unit = text.strip()[len(number) :].strip().upper()
    try:
        size = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        raise ValueError(f"`{text}` is not a size: write 512MiB or 2GiB") from None
    if not 0 < size < 2**50:
        raise ValueError(f"`{text}` is not a size that makes sense")
    return int(size)


def format_bytes(size: int) -> str:
    """A size for people."""
    for unit, name in ((1024 * MEBIBYTE, "GiB"), (MEBIBYTE, "MiB"), (1024, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f}".removesuffix(".0") + f" {name}"
    return f"{size} B"
