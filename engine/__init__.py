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
from engine.kv.changes import CacheChanges
from engine.loop import EngineLoop
from engine.steps import EngineLoad, StepReport, StepShape
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
from engine.warmup import warm_up

__all__ = [
    "Admission",
    "BlockRef",
    "CacheChanges",
    "Capacity",
    "ConfigError",
    "DuplicateRequest",
    "Engine",
    "EngineConfig",
    "EngineError",
    "EngineLoad",
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
    "StepReport",
    "StepShape",
    "UnknownRequest",
    "warm_up",
]
