"""Baton: serves language models with prefill and decode in separate gRPC services.

`Client` and `AsyncClient` talk to a running server; the errors are in `baton.errors`.
Names resolve on first use, so that `baton.naming` and the other leaves can be imported
where gRPC is not installed.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from baton.client import AsyncClient as AsyncClient
    from baton.client import Client as Client
    from baton.client import ResumeFrom as ResumeFrom

__all__ = ["AsyncClient", "Client", "ResumeFrom"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name in __all__:
        from baton import client

        return getattr(client, name)
    raise AttributeError(f"module 'baton' has no attribute {name!r}")
