"""A worker process to be killed: publishes two blobs, holds a reservation, waits.

`python -m tests.support.transfer_worker ADDRESS`; prints the blobs' names when it is done.
"""

import asyncio
import sys

from baton.naming import BlobName, Incarnation, LeaseId, WorkerId
from services.common import rpc
from services.common.transfer.calls import TransferCalls
from services.common.transfer.client import OutgoingBlob, TransferClient

SIZE = 10_000
DATA = {BlobName(bytes([number]) * 16): bytes([number]) * SIZE for number in (1, 2)}


async def main(address: str) -> None:
    """Works, then waits for its end."""
    incarnation = Incarnation("doomed")
    client = TransferClient(address, WorkerId("doomed"), incarnation, 1 << 20)
    await client.start()
    blobs = [OutgoingBlob(name, memoryview(data), 1.0) for name, data in DATA.items()]
    held = await client.publish(blobs, LeaseId("doomed"), 10.0)
    calls = TransferCalls(rpc.channel(address), incarnation)
    places = await calls.reserve([SIZE], 0, 10.0)
    print(len(held), len(places), flush=True)  # noqa: T201 - tells the test
    await asyncio.sleep(120)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
