"""Names of requests, workers and KV blobs.

A blob's name says which tokens its KV was computed from, in which layout and for which
tenant: a SHA-256 chained over the blocks of a sequence, cut to 128 bits. Whoever holds a
name's bytes holds KV that is as good as anyone's, so caches and retries need no other key.

Imports only the standard library; knows nothing of tensors, wires or processes.
"""

import hashlib
import secrets
import struct
from collections.abc import Sequence
from typing import NewType

RequestId = NewType("RequestId", str)
WorkerId = NewType("WorkerId", str)
Incarnation = NewType("Incarnation", str)
LeaseId = NewType("LeaseId", str)
ChainName = NewType("ChainName", bytes)
"""Names the tokens up to the end of a block, over all KV groups."""
BlobName = NewType("BlobName", bytes)
"""Names one block's KV in one KV group."""

NAME_BYTES = 16
MAX_REQUEST_ID_CHARACTERS = 128


def new_id(prefix: str) -> str:
    """A fresh id with 80 random bits, such as `req-5f0c9d...`."""
    return f"{prefix}-{secrets.token_hex(10)}"


def _digest(domain: bytes, *parts: bytes) -> bytes:
    hasher = hashlib.sha256(domain)
    for part in parts:
        hasher.update(struct.pack("<Q", len(part)))
        hasher.update(part)
    return hasher.digest()[:NAME_BYTES]


def tenant_salt(tenant: str) -> bytes:
    """The salt of a tenant's names, so that no other tenant finds them; empty for nobody."""
    return _digest(b"baton.tenant", tenant.encode()) if tenant else b""


def chain_root(layout_fingerprint: str, tenant_salt: bytes = b"") -> ChainName:
    """The parent of a sequence's first block."""
    return ChainName(_digest(b"baton.root", layout_fingerprint.encode(), tenant_salt))


def chain_next(parent: ChainName, token_ids: Sequence[int]) -> ChainName:
    """The name of the block that follows `parent` and holds `token_ids`.

    The number of tokens is part of the name: a partial block is not its full one.
    """
    return ChainName(
        _digest(b"baton.block", parent, struct.pack(f"<{len(token_ids)}I", *token_ids))
    )


def blob_name(chain: ChainName, group: int, head_group: int = 0) -> BlobName:
    """The name of a block's KV in KV group `group`.

    `head_group` numbers the KV heads' share, so that pools of different tensor
    parallelism can exchange; 0 where one worker holds all heads.
    """
    return BlobName(_digest(b"baton.blob", chain, struct.pack("<II", group, head_group)))
