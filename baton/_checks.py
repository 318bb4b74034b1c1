"""Checks of the client's arguments: their types, and what the wire cannot carry.

A wrong type is a TypeError that names the argument; a value that the wire cannot carry is an
InvalidRequest that names the field.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from operator import index
from typing import Any

from google.protobuf import duration_pb2

from baton import errors

UINT32_MAX = 2**32 - 1
UINT64_MAX = 2**64 - 1
INT32_MAX = 2**31 - 1
_DURATION_MAX_S = 315_576_000_000


def to_timeout(timeout: Any) -> float | None:
    """Checks a deadline in seconds."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout: expected seconds, got {kind_of(timeout)}")
    return float(timeout)


def to_metadata(metadata: Any) -> tuple[tuple[str, str], ...]:
    """Checks what goes with a call besides its message."""
    if metadata is None:
        return ()
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata: expected a mapping, got {kind_of(metadata)}")
    for name, value in metadata.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise TypeError(f"metadata: expected strings, got {name!r:.40}: {kind_of(value)}")
    return tuple(metadata.items())


def to_sequence(argument: str, value: Any) -> Sequence[Any]:
    """Checks that it is a sequence, or makes it one; nothing where an option is not given."""
    if value is None and argument != "prompt" and not argument.endswith("]"):
        return ()
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
        wanted = "text, token ids or messages" if argument == "prompt" else "a sequence"
        raise TypeError(f"{argument}: expected {wanted}, got {kind_of(value)}")
    return value if isinstance(value, Sequence) else tuple(value)


def to_strings(options: Mapping[str, Any], name: str) -> list[str]:
    """An option that is one string or several."""
    given = options.get(name)
    strings = to_sequence(name, [given] if isinstance(given, str) else given)
    names = [f"{name}[{position}]" for position in range(len(strings))]
    return [to_text(at, at, text) for at, text in zip(names, strings, strict=True)]


def to_flag(options: Mapping[str, Any], name: str) -> bool:
    """Checks an option that is a bool."""
    value = options.get(name, False)
    if not isinstance(value, bool):
        raise TypeError(f"{name}: expected a bool, got {kind_of(value)}")
    return value


def to_number(argument: str, value: Any) -> float:
    """Checks a number."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{argument}: expected a number, got {kind_of(value)}")
    return float(value)


def to_duration(argument: str, value: Any) -> duration_pb2.Duration:
    """Checks seconds, and makes them a duration."""
    seconds = to_number(argument, value)
    if not isfinite(seconds) or abs(seconds) > _DURATION_MAX_S:
        raise errors.InvalidRequest(argument, f"{seconds} s is not a duration")
    duration = duration_pb2.Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def to_integer(argument: str, field: str, value: Any, largest: int, least: int = 0) -> int:
    """Checks an integer."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{argument}: expected an int, got {kind_of(value)}")
    number = index(value)
    if not least <= number <= largest:
        raise errors.InvalidRequest(field, f"must be from {least} to {largest}, not {number}")
    return number


def to_ids(argument: str, field: str, items: Sequence[Any]) -> Sequence[int]:
    """Checks token ids."""
    if all(type(item) is int and 0 <= item <= UINT32_MAX for item in items):
        return items
    return [
        to_integer(f"{argument}[{position}]", f"{field}[{position}]", item, UINT32_MAX)
        for position, item in enumerate(items)
    ]


def to_text(argument: str, field: str, value: Any) -> str:
    """Checks text."""
    if not isinstance(value, str):
        raise TypeError(f"{argument}: expected a str, got {kind_of(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise errors.InvalidRequest(field, "is not valid Unicode text") from error
    return value


def kind_of(value: object) -> str:
    """The name of a value's type."""
    return type(value).__name__
