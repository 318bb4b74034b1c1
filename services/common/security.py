"""How a process proves who it is to other processes, and whom it believes: TLS of its gRPC.

    no certificate          plain text; servers then listen on loopback addresses alone, unless
                            `--insecure`
    --tls-cert, --tls-key   the server speaks TLS
    --tls-ca as well        mutual TLS: the server takes only clients with a certificate that this
                            CA signed, and calls to others go over TLS, are verified by it and show
                            the own certificate

Workers are found at addresses that no certificate can name ahead of time. `--tls-server-name` is a
name that the certificates of the whole fleet have, and that is verified in place of the address.
Files are read once, at the start. Health checks are served on the same port in the same way.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from baton.tls import is_loopback
from services.common.settings import ServiceSettings

_NAME_OVERRIDE = "grpc.ssl_target_name_override"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate, with those that lead to its CA, and its private key; both PEM."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "KeyPair(...)"  # never in a log


@dataclass(frozen=True, slots=True)
class Security:
    """What a process's servers and channels need."""

    identity: KeyPair | None = None
    """None: servers speak plain text."""
    ca: bytes | None = None
    """PEM. None: channels to other processes are plain text."""
    server_name: str = ""
    """Verified in place of an address; empty: the address is."""
    client_certificates: bool = True
    """Whether the server takes only clients with a certificate, where there is a CA."""
    insecure: bool = False
    """Whether plain text may be served at addresses that others reach."""

    @classmethod
    def of(cls, settings: ServiceSettings, *, client_certificates: bool = True) -> "Security":
        """Reads the files. Raises OSError, with one line for people, where they can't be used."""
        cert, key, ca = settings.tls_cert, settings.tls_key, settings.tls_ca
        identity = None
        if cert is not None and key is not None:
            identity = KeyPair(_read("--tls-cert", cert), _read("--tls-key", key))
            _check_pair(cert, key)
        elif cert is not None or key is not None:
            raise OSError("--tls-cert and --tls-key only work together")
        if ca is not None and identity is None:
            raise OSError("--tls-ca needs --tls-cert and --tls-key: both sides show certificates")
        return cls(
            identity=identity,
            ca=_read_ca(ca) if ca is not None else None,
            server_name=settings.tls_server_name,
            client_certificates=client_certificates,
            insecure=settings.insecure,
        )

    @property
    def encrypts_calls(self) -> bool:
        """Whether channels to other processes go over TLS."""
        return self.ca is not None

    @property
    def wants_certificates(self) -> bool:
        """Whether the server takes only clients that the CA knows."""
        return self.ca is not None and self.client_certificates

    def check_bind(self, address: str) -> None:
        """Raises OSError where a server must not listen at `address`."""
        check_bind(address, encrypted=self.identity is not None, insecure=self.insecure)

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """None: plain text."""
        if self.ca is None:
            return None
        key, certificate = (
            (self.identity.key, self.identity.certificate) if self.identity else (None, None)
        )
        return grpc.ssl_channel_credentials(self.ca, key, certificate)

    def channel_options(self) -> list[tuple[str, str]]:
        """What the credentials do not say."""
        return [(_NAME_OVERRIDE, self.server_name)] if self.ca and self.server_name else []

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """None: plain text."""
        if self.identity is None:
            return None
        pair = [(self.identity.key, self.identity.certificate)]
        if not self.wants_certificates:
            return grpc.ssl_server_credentials(pair)
        return grpc.ssl_server_credentials(
            pair, root_certificates=self.ca, require_client_auth=True
        )


PLAIN = Security()
"""Plain text, on loopback addresses."""


def check_bind(
    address: str,
    *,
    encrypted: bool,
    insecure: bool,
    ways: str = "--tls-cert and --tls-key",
) -> None:
    """Raises OSError where plain text would be served at an address that others reach. `ways`
    are the flags that encrypt it."""
    if not (encrypted or insecure or is_loopback(address)):
        raise OSError(
            f"{address} can be reached from other machines, and would be served in plain text: "
            f"give {ways}, or --insecure where the network can be trusted"
        )


def _read(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise OSError(f"{flag} {path}: {error.strerror}") from error


def _check_pair(certificate: Path, key: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            certificate, key, password=_no_password
        )
    except (ssl.SSLError, ValueError) as error:
        raise OSError(
            f"--tls-cert {certificate} and --tls-key {key} are no certificate in PEM form with "
            f"its own, unencrypted key ({error})"
        ) from error


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _read_ca(path: Path) -> bytes:
    content = _read("--tls-ca", path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(
            cadata=content.decode("ascii")
        )
    except (ssl.SSLError, ValueError) as error:
        raise OSError(f"--tls-ca {path} has no certificates in PEM form ({error})") from error
    return content
