"""Typed reading of a checkpoint's settings, with errors that name file and key."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.loader.errors import LoadError

_MOST = 2**31 - 1
"""No count or size of a model comes near; tensors of more can't even be described."""
_MOST_LAYERS = 100_000


class Fields:
    """A mapping of settings. Null counts as absent. Raises LoadError on a wrong value."""

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.path = path
        self._values = values
        self._prefix = prefix

    def fault(self, key: str, problem: str) -> LoadError:
        """An error about one setting."""
        return LoadError(self.path, f"{self._prefix}{key} {problem}")

    def get(self, key: str) -> Any:
        """The value, of whatever type; None where it is absent."""
        return self._values.get(self._prefix + key)

    def positive_int(self, key: str, default: int | None = None, most: int = _MOST) -> int:
        """A whole number of at least one, and of a size that makes sense."""
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.fault(key, "is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
            raise self.fault(key, f"is {value!r}, not a positive whole number")
        if value > most:
            raise self.fault(key, f"is {value}, more than {most}")
        return value

    def layers(self, key: str) -> int:
        """How many layers there are; not so many that listing them is work."""
        return self.positive_int(key, most=_MOST_LAYERS)

    def even_int(self, key: str, default: int) -> int:
        """A positive whole number that halves."""
        value = self.positive_int(key, default)
        if value % 2:
            raise self.fault(key, f"is {value}, which is odd")
        return value

    def positive_float(self, key: str, default: float | None = None) -> float:
        """A number above zero."""
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.fault(key, "is missing")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.fault(key, f"is {value!r}, not a positive number")
        return float(value)

    def number_or_null(self, key: str, default: float) -> float | None:
        """A number above zero; None where it is null, `default` where it is absent."""
        if self.get(key) is None and self._prefix + key in self._values:
            return None
        return self.positive_float(key, default)

    def window(self, key: str, default: int | None) -> int | None:
        """Tokens in a window; None where it is null, `default` where it is absent."""
        if self.get(key) is None:
            return None if self._prefix + key in self._values else default
        return self.positive_int(key)

    def whole(self, key: str, default: int) -> int:
        """A whole number of at least zero."""
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.fault(key, f"is {value!r}, not a whole number")
        return value

    def wholes(self, key: str) -> frozenset[int]:
        """A list of whole numbers; empty where it is absent."""
        value = self.get(key)
        listed = [] if value is None else value
        if not isinstance(listed, list) or any(type(one) is not int or one < 0 for one in listed):
            raise self.fault(key, f"is {value!r}, not a list of whole numbers")
        return frozenset(listed)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fault(key, f"is {value!r}, neither true nor false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.fault(key, "is missing")
        if not isinstance(value, str):
            raise self.fault(key, f"is {value!r}, not a string")
        return value

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of strings; None where it is absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.fault(key, f"is {value!r}, not a list of strings")
        return tuple(value)

    def part(self, key: str) -> "Fields | None":
        """A mapping within; None where it is absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.fault(key, f"is {value!r}, not a mapping")
        return Fields(self.path, {f"{key}.{name}": v for name, v in value.items()}, f"{key}.")

    def token_ids(self, key: str) -> frozenset[int]:
        """One token id or a list of them; empty where it is absent."""
        value = self.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        for token_id in ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
                raise self.fault(key, f"is {value!r}, not token ids")
        return frozenset(ids)

    def refuse(self, key: str, *, unless: tuple[Any, ...] = (), why: str) -> None:
        """Raises where the setting has a value that is not among `unless`."""
        value = self.get(key)
        if value is not None and value not in unless:
            raise self.fault(key, f"is {value!r}: {why}")
