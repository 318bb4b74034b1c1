"""Places on the wire: what client and service both convert at their doors."""

from baton.v1 import transfer_pb2
from services.common.transfer.place import Generation, Place, SegmentId


def place_to_proto(place: Place) -> transfer_pb2.Place:
    """The wire form of `place`."""
    return transfer_pb2.Place(
        segment_id=place.segment_id,
        offset_bytes=place.offset,
        size_bytes=place.size,
        generation=place.generation,
    )


def place_from_proto(message: transfer_pb2.Place) -> Place:
    """The place that `message` names, which need not exist."""
    return Place(
        SegmentId(message.segment_id),
        message.offset_bytes,
        message.size_bytes,
        Generation(message.generation),
    )
