"""Protobuf messages as JSON values for programs: snake_case, every field, numbers as numbers.

Protobuf's own JSON has 64-bit counters as strings, which no one can add up.
"""

from typing import Any

from google.protobuf import duration_pb2, timestamp_pb2
from google.protobuf.message import Message


def to_json(message: Message) -> dict[str, Any]:
    """The message's fields; null where one with presence is absent, durations in seconds, moments
    as RFC 3339 has them."""
    return {field.name: _field(message, field) for field in message.DESCRIPTOR.fields}


def _field(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        kind = field.message_type.fields_by_name["value"]
        return {str(key): _value(kind, item) for key, item in value.items()}
    if field.is_repeated:
        return [_value(field, item) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _value(field, value)


def _value(field: Any, value: Any) -> Any:
    if isinstance(value, duration_pb2.Duration):
        return value.seconds + value.nanos / 1e9
    if isinstance(value, timestamp_pb2.Timestamp):
        return value.ToJsonString()
    if isinstance(value, Message):
        return to_json(value)
    if isinstance(value, bytes):
        return value.hex()
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value
