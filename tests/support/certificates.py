"""Certificate authorities and certificates for tests, as PEM files."""

from dataclasses import dataclass
from pathlib import Path

import trustme

from baton.tls import Tls

FLEET_NAME = "baton.fleet"
"""In all of a fleet's certificates; they name no address."""


@dataclass(frozen=True)
class Certificate:
    """One certificate, its key and the CA that signed it."""

    cert: Path
    key: Path
    ca: Path

    @property
    def flags(self) -> list[str]:
        """Of a service that uses it."""
        return [
            f"--tls-cert={self.cert}",
            f"--tls-key={self.key}",
            f"--tls-ca={self.ca}",
            f"--tls-server-name={FLEET_NAME}",
        ]

    @property
    def tls(self) -> Tls:
        """Of a client that shows it."""
        return Tls(ca=self.ca, cert=self.cert, key=self.key, server_name=FLEET_NAME)


class Authority:
    """A CA with files in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._directory.mkdir(parents=True, exist_ok=True)
        self._ca = trustme.CA()
        self.ca = directory / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.ca))

    def issue(self, file: str, *names: str) -> Certificate:
        """A certificate for `names`, the fleet's where there are none."""
        issued = self._ca.issue_cert(*(names or (FLEET_NAME,)))
        cert, key = self._directory / f"{file}.pem", self._directory / f"{file}.key"
        cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(key))
        return Certificate(cert, key, self.ca)
