"""Who may reach what `baton up` starts, and over what. On loopback, anyone, in plain text."""

from dataclasses import dataclass
from pathlib import Path

from baton.client import Client
from baton.local.problem import Problem
from baton.local.state import Kind
from baton.tls import Tls, is_loopback


@dataclass(frozen=True, slots=True)
class Guard:
    """Keys and certificates. One certificate serves all processes: clients need none."""

    api_keys: Path | None = None
    """File of the keys that the routers accept; None: those of the environment, if any."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    """Who signed the certificate."""
    tls_server_name: str = ""
    """A name in the certificate; empty: it names the addresses."""
    insecure: bool = False
    """Whether other machines may reach it in plain text."""

    @property
    def tls(self) -> Tls | None:
        """Of clients on this machine; None: plain text."""
        if self.tls_ca is None:
            return None
        return Tls(self.tls_ca, self.tls_cert, self.tls_key, self.tls_server_name)

    def check(self, host: str) -> None:
        """Raises Problem where something is missing for serving at `host`."""
        files = (self.tls_cert, self.tls_key, self.tls_ca)
        if any(files) and not all(files):
            raise Problem("--tls-cert, --tls-key and --tls-ca only work together")
        if not (all(files) or self.insecure or is_loopback(f"{host}:0")):
            raise Problem(
                f"--host {host} lets other machines reach Baton in plain text: give --tls-cert, "
                "--tls-key and --tls-ca, or --insecure where the network can be trusted"
            )

    def flags(self, kind: Kind) -> list[str]:
        """Flags of a process of this kind."""
        flags: dict[str, object] = {
            "--tls-cert": self.tls_cert,
            "--tls-key": self.tls_key,
            "--tls-ca": self.tls_ca,
            "--tls-server-name": self.tls_server_name,
        }
        switches: list[str] = []
        if kind is Kind.ROUTER:
            flags["--api-keys"] = self.api_keys and self.api_keys.absolute()
            switches += ["--no-tls-client-certs"] if self.tls_ca else []
        if kind is Kind.GATEWAY:
            flags |= {"--https-cert": self.tls_cert, "--https-key": self.tls_key}
        if kind in (Kind.ROUTER, Kind.GATEWAY) and self.insecure:
            switches.append("--insecure")
        return [*(f"{flag}={value}" for flag, value in flags.items() if value), *switches]

    def arguments(self) -> list[str]:
        """The options of `baton up` that mean the same."""
        flags = {
            "--api-keys": self.api_keys,
            "--tls-cert": self.tls_cert,
            "--tls-key": self.tls_key,
            "--tls-ca": self.tls_ca,
            "--tls-server-name": self.tls_server_name,
        }
        given = [f"{flag}={value}" for flag, value in flags.items() if value]
        return [*given, *(["--insecure"] if self.insecure else [])]

    def client(self, address: str) -> Client:
        """A client on this machine. It has no key."""
        return Client(address, tls=self.tls)
