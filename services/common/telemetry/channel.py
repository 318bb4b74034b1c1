"""A gRPC channel whose calls say to which span they belong.

Around the channel rather than an interceptor in it: an intercepted call is another object, which
cancels and reads by other rules.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import grpc

from services.common.telemetry import context


class TracedChannel(grpc.aio.Channel):
    """`inner`, with the current span's context in the metadata of each call that has none."""

    def __init__(self, inner: grpc.aio.Channel) -> None:
        self._inner = inner

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._inner.__aexit__(kind, error, traceback)

    async def close(self, grace: float | None = None) -> None:
        """Ends its calls, after `grace` seconds."""
        await self._inner.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Whether it is connected."""
        return self._inner.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Returns once its state is another one."""
        await self._inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Returns once it is connected."""
        await self._inner.channel_ready()

    def unary_unary(self, *arguments: Any, **options: Any) -> Any:
        """A method with one request and one answer."""
        return _traced(self._inner.unary_unary(*arguments, **options))

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:
        """A method with one request and many answers."""
        return _traced(self._inner.unary_stream(*arguments, **options))

    def stream_unary(self, *arguments: Any, **options: Any) -> Any:
        """A method with many requests and one answer."""
        return _traced(self._inner.stream_unary(*arguments, **options))

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:
        """A method with many requests and many answers."""
        return _traced(self._inner.stream_stream(*arguments, **options))


def _traced(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, metadata: Any = None, **options: Any) -> Any:
        told = tuple(metadata or ())
        if not any(key == context.TRACEPARENT for key, _ in told):
            told += context.inject()
        return method(*arguments, metadata=told or None, **options)

    return call
