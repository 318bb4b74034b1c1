"""How both clients open channels, and what a failed call means."""

from collections.abc import Iterable
from typing import Any

import grpc

from baton import errors
from baton.addresses import to_target as to_target

DEFAULT_ADDRESS = "127.0.0.1:7600"
_STATUS_METADATA = "grpc-status-details-bin"
_MAX_MESSAGE_BYTES = 16 * 1024 * 1024

CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # what keepalive pings wait for in fact
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # a connection's whole time to come about
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),
    ("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}'),
)
"""Keepalive while calls are open, to notice a router that vanished; soon to find it again.
Calls go in turn to the addresses that a target has."""


def to_error(error: grpc.RpcError, address: str) -> errors.BatonError:
    """The error that a failed call to `address` stands for."""
    known = errors.from_rpc_error(error)
    if isinstance(known, errors.Unavailable) and not _from_baton(error):
        return errors.Unavailable(
            f"no answer from {address}: {known.message}", reason="UNREACHABLE"
        )
    return known


def _from_baton(error: grpc.RpcError) -> bool:
    """Whether a Baton process answered, rather than the transport."""
    return any(key == _STATUS_METADATA for key, _ in last_metadata(error))


def last_metadata(error: grpc.RpcError) -> Iterable[Any]:
    """What came with a failed call's status: keys and values."""
    metadata: Any = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    return metadata or ()
