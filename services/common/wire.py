"""Parsing messages that may be malformed.

gRPC answers INTERNAL where a message can't be parsed, which blames the server and names
nothing. `safe_parser` returns a ParseFailure instead. To name the field that holds invalid
UTF-8, it parses once more with every string declared as bytes, and looks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
from google.protobuf.descriptor import Descriptor, FileDescriptor

Parser = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class ParseFailure:
    """Stands for a message that could not be parsed."""

    field: str
    problem: str


def safe_parser(parse: Parser | None) -> Parser | None:
    """Like `parse` (a message class's FromString), but returns ParseFailure, never raises."""
    if parse is None:
        return None

    def parse_or_explain(data: bytes) -> Any:
        try:
            return parse(data)
        except message.DecodeError:
            return _explain(parse, data)

    return parse_or_explain


def _explain(parse: Parser, data: bytes) -> ParseFailure:
    try:
        descriptor = parse(b"").DESCRIPTOR
        lenient = _lenient_class(descriptor).FromString(data)
    except (message.DecodeError, AttributeError):
        return ParseFailure("request", "is not a message of the expected type")
    path = _invalid_utf8(lenient, descriptor)
    if path is None:
        return ParseFailure("request", "is not a message of the expected type")
    return ParseFailure(path, "is not valid UTF-8")


@cache
def _lenient_class(descriptor: Descriptor) -> Any:
    pool = descriptor_pool.DescriptorPool()
    _add_lenient(descriptor.file, pool, set())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(descriptor.full_name))


def _add_lenient(
    file: FileDescriptor, pool: descriptor_pool.DescriptorPool, seen: set[str]
) -> None:
    if file.name in seen:
        return
    seen.add(file.name)
    for dependency in file.dependencies:
        _add_lenient(dependency, pool, seen)
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    for kind in proto.message_type:
        _strings_to_bytes(kind)
    pool.Add(proto)


def _strings_to_bytes(kind: descriptor_pb2.DescriptorProto) -> None:
    types = descriptor_pb2.FieldDescriptorProto
    if kind.options.map_entry:
        return  # bytes can't be keys; no message that a process receives has a map of strings
    for field in kind.field:
        if field.type == types.TYPE_STRING:
            field.type = types.TYPE_BYTES
    for nested in kind.nested_type:
        _strings_to_bytes(nested)


def _invalid_utf8(lenient: message.Message, original: Descriptor) -> str | None:
    for field, value in lenient.ListFields():
        twin = original.fields_by_name[field.name]
        if twin.message_type is not None and twin.message_type.GetOptions().map_entry:
            continue
        repeated = isinstance(value, list) or hasattr(value, "append") or hasattr(value, "add")
        for index, item in enumerate(value if repeated else [value]):
            path = f"{field.name}[{index}]" if repeated else field.name
            if twin.type == twin.TYPE_STRING and not _is_utf8(item):
                return path
            if twin.message_type is not None:
                inner = _invalid_utf8(item, twin.message_type)
                if inner is not None:
                    return f"{path}.{inner}"
    return None


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
