"""Reads blobs of another host as a gRPC byte stream, on a channel of its own."""

from collections.abc import AsyncGenerator, Sequence

import grpc

from baton import errors
from baton.naming import BlobName
from baton.v1 import transfer_pb2
from services.common.security import PLAIN, Security
from services.common.transfer.place import Checksum
from services.transfer.peers.channels import Channels
from services.transfer.peers.reader import Piece


class StreamReader:
    """A PeerReader over ReadBlobs: HTTP/2's flow control holds a peer back that is too fast."""

    def __init__(self, security: Security = PLAIN) -> None:
        self._channels = Channels(security)

    async def read(self, source: str, names: Sequence[BlobName]) -> AsyncGenerator[Piece, None]:
        """See PeerReader."""
        with self._channels.use(source) as stub:
            call = stub.ReadBlobs(transfer_pb2.ReadBlobsRequest(names=names))
            try:
                async for message in call:
                    yield Piece(
                        BlobName(message.name),
                        message.offset_bytes,
                        message.data,
                        message.size_bytes,
                        Checksum(message.checksum),
                    )
            except grpc.RpcError as error:
                raise errors.from_rpc_error(error) from error
            finally:
                call.cancel()

    async def drop_idle(self) -> None:
        """Closes connections that were not used lately."""
        await self._channels.drop_idle()

    async def close(self) -> None:
        """Ends all reads."""
        await self._channels.close()
