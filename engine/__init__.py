"""The engine: torch in, tokens out. Knows no gRPC, Redis, environment variables or text."""

from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import (
    ConfigError,
    DuplicateRequest,
    EngineError,
    IntegrityError,
    LoopStopped,
    NoRoom,
    RequestError,
    UnknownRequest,
)
from engine.loop import EngineLoop
from engine.types import (
    Admission,
    BlockRef,
    Capacity,
    EngineStatus,
    FinishReason,
    FirstToken,
    GroupStatus,
    Limits,
    Request,
    SampledToken,
    SamplingParams,
    SequenceOutput,
)

__all__ = [
    "Admission",
    "BlockRef",
    "Capacity",
    "ConfigError",
    "DuplicateRequest",
    "Engine",
    "EngineConfig",
    "EngineError",
    "EngineLoop",
    "EngineStatus",
    "FinishReason",
    "FirstToken",
    "GroupStatus",
    "IntegrityError",
    "Limits",
    "LoopStopped",
    "NoRoom",
    "Request",
    "RequestError",
    "SampledToken",
    "SamplingParams",
    "SequenceOutput",
    "UnknownRequest",
]
