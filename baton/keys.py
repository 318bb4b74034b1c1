"""API keys: how they are made and sent, and the lines by which a router knows them.

A key is random enough that its plain SHA-256 tells nothing; routers keep that alone. A line of a
key file is `SHA256HEX TENANT` or `SHA256HEX TENANT operator`; `#` begins a comment. A tenant may
have several keys, so that one can be changed for another.
"""

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

PREFIX = "bk-"
_RANDOM_BYTES = 32
_OPERATOR = "operator"
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_TENANT = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


class KeyLineError(ValueError):
    """A line that is none; the message has its number and not what it says."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a key is, and what it allows."""

    tenant: str
    operator: bool = False
    """Whether it may see the whole fleet and all requests."""


def new_key() -> str:
    """A fresh key."""
    return PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def digest_of(key: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def bearer_of(authorization: str) -> str:
    """The key in an `authorization` of the form `Bearer KEY`; empty where there is none."""
    scheme, _, key = authorization.strip().partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def line_of(key: str, owner: Owner) -> str:
    """The key's line for a file. Raises ValueError where the tenant's name is none."""
    if not _TENANT.fullmatch(owner.tenant):
        raise ValueError("a tenant's name is 1 to 64 of the characters A-Z a-z 0-9 . _ : -")
    return " ".join([digest_of(key), owner.tenant, *([_OPERATOR] if owner.operator else [])])


def parse_lines(text: str) -> Mapping[str, Owner]:
    """Keys' owners by digest. Raises KeyLineError."""
    owners: dict[str, Owner] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        digest, owner = _parsed(words, number)
        if digest in owners:
            raise KeyLineError(f"line {number}: this key has a line already")
        owners[digest] = owner
    return owners


def looks_like_lines(text: str) -> bool:
    """Whether `text` is a key file's content rather than the name of one."""
    return "\n" in text or _DIGEST.match(text.strip()) is not None


def _parsed(words: list[str], number: int) -> tuple[str, Owner]:
    digest, tenant, *rest = words if len(words) > 1 else [*words, ""]
    if not _DIGEST.fullmatch(digest):
        raise KeyLineError(f"line {number}: does not begin with the SHA-256 of a key")
    if not _TENANT.fullmatch(tenant):
        raise KeyLineError(f"line {number}: has no tenant's name behind the key's SHA-256")
    if rest not in ([], [_OPERATOR]):
        raise KeyLineError(f"line {number}: only `{_OPERATOR}` may follow the tenant's name")
    return digest.lower(), Owner(tenant, bool(rest))
