"""Many short requests, and whether any process grew over them."""

import asyncio

from baton.client import AsyncClient
from tests.support.cluster import MEBIBYTE, Cluster

_CLIENTS = 32
_SETTLING = 1 / 4
"""Part of the requests after which memory is what it is compared with at the end."""
_GROWTH = 1.04
_GROWTH_BYTES = 8 * MEBIBYTE


async def grown_over(cluster: Cluster, requests: int) -> list[str]:
    """Processes that grew over so many requests, each with a prompt of its own."""
    settling = int(requests * _SETTLING)
    await _serve(cluster.address, range(settling))
    settled = cluster.resident_bytes()
    await _serve(cluster.address, range(settling, requests))
    return [
        f"{name} grew from {settled[name] >> 20} to {size >> 20} MiB"
        for name, size in cluster.resident_bytes().items()
        if size > settled[name] * _GROWTH + _GROWTH_BYTES
    ]


async def _serve(address: str, numbers: range) -> None:
    left = iter(numbers)
    async with AsyncClient(address) as channel:

        async def client() -> None:
            for number in left:
                length = 40 if number % 25 == 0 else 3
                prompt = [3 + (number // 240**i + i) % 240 for i in range(length)]
                tokens = 4 if number % 10 == 0 else 1
                whole = await channel.complete(
                    prompt, max_tokens=tokens, ignore_eos=True, logprobs=number % 3, timeout=60.0
                )
                assert len(whole.token_ids) == tokens

        await asyncio.gather(*(client() for _ in range(_CLIENTS)))
