"""What the engine refuses or fails with. It knows no wire: a service maps these to its own errors.

    EngineError
    ├── ConfigError         the configuration can't work with this model
    ├── RequestError        the request can never work here; `field` names the culprit
    ├── DuplicateRequest    a request of this id is in the engine
    ├── UnknownRequest      no request of this id waits to be started
    ├── NoRoom              the request would fit, but not now
    ├── MaskError           a sequence's mask can't go on; no other sequence is touched
    ├── LoopStopped         the engine's thread is not running
    └── IntegrityError      a bug: a structure contradicts itself

`engine.loader.LoadError` is the loader's own.
"""


class EngineError(Exception):
    """Base of the engine's errors."""


class ConfigError(EngineError):
    """The configuration can't work with this model."""


class RequestError(EngineError):
    """The request can never work on this engine."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        """Path of the culprit in `Request`, such as `sampling.top_p`."""


class DuplicateRequest(EngineError):
    """A request of this id is in the engine already."""


class UnknownRequest(EngineError):
    """No request of this id waits to be started."""


class NoRoom(EngineError):
    """No room now: sequences or blocks are taken."""


class MaskError(EngineError):
    """The constraint of a sequence can't be followed any further."""


class LoopStopped(EngineError):
    """The engine's thread is not running, so a call can't be served."""


class IntegrityError(EngineError):
    """A structure contradicts itself: a bug."""


def ensure(condition: bool, message: str) -> None:
    """Raise IntegrityError with `message` unless `condition` holds."""
    if not condition:
        raise IntegrityError(message)
