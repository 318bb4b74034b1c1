"""Engines for tests, and how to drive them without a thread."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from baton.naming import BlobName
from engine.config import EngineConfig
from engine.engine import Engine
from engine.loader import LoadedModel
from engine.types import (
    BlockRef,
    FinishReason,
    FirstToken,
    Request,
    SampledToken,
    SamplingParams,
)
from tests.support.fake_model import FakeModel, fake_config

MAX_STEPS = 10_000
Publish = Callable[[tuple[BlockRef, ...]], None]


def fake_engine(
    *,
    windows: Sequence[int | None] = (None, 6),
    max_position: int = 200,
    eos: Iterable[int] = (),
    block_size: int = 4,
    kv_bytes: int = 1 << 16,
    max_sequences: int = 8,
    max_step_tokens: int = 16,
    checkpoint_blocks: int = 4,
) -> Engine:
    """An engine of a FakeModel, which `engine_model(engine)` gives."""
    model = FakeModel(windows)
    config = EngineConfig(
        block_size=block_size,
        kv_bytes=kv_bytes,
        max_sequences=max_sequences,
        max_step_tokens=max_step_tokens,
        checkpoint_blocks=checkpoint_blocks,
        dtype=torch.float32,
    )
    loaded = LoadedModel(
        config=fake_config(model.vocab_size, max_position, frozenset(eos)),
        digest="fake",
        module=model,  # type: ignore[arg-type]
        weight_format="float32",
    )
    return Engine(loaded, config)


def greedy(max_tokens: int, **kwargs: object) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **kwargs)  # type: ignore[arg-type]


@dataclass
class Result:
    """All outputs of one sequence."""

    sampled: list[SampledToken] = field(default_factory=list)
    exports: list[BlockRef] = field(default_factory=list)
    reason: FinishReason | None = None
    computed: list[int] = field(default_factory=list)
    first_tokens: list[FirstToken] = field(default_factory=list)
    prompt_logprobs: list[SampledToken] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [token.token_id for token in self.sampled]


def drive(
    engine: Engine,
    results: dict[str, Result] | None = None,
    *,
    until: Callable[[dict[str, Result]], bool] | None = None,
    publish: Publish | None = None,
) -> dict[str, Result]:
    """Step until there is no work (or `until`). `publish` gets each step's exports and has to
    release them; by default they are released at once."""
    results = {} if results is None else results
    publish = publish or engine.release_exports
    for _ in range(MAX_STEPS):
        if not engine.has_work or (until is not None and until(results)):
            return results
        for output in engine.step():
            result = results.setdefault(output.request_id, Result())
            assert result.reason is None, "an output after the last one"
            result.sampled += output.tokens
            result.exports += output.exports
            result.computed.append(output.computed_tokens)
            result.first_tokens += output.first_tokens
            result.prompt_logprobs += output.prompt_logprobs
            result.reason = output.finish_reason
            publish(output.exports)
    raise AssertionError("the engine does not come to an end")


def run(engine: Engine, request: Request) -> Result:
    """Admit, start and finish one request."""
    assert engine.admit(request).missing == ()
    engine.start(request.request_id)
    return drive(engine)[request.request_id]


def read_blocks(engine: Engine, refs: Iterable[BlockRef]) -> dict[BlobName, bytes]:
    """The bytes of exported blocks."""
    return {ref.name: bytes(engine.block_view(ref.group, ref.block)) for ref in refs}


def run_exporting(engine: Engine, request: Request) -> tuple[Result, dict[BlobName, bytes]]:
    """Finish one request that exports; its result, and the blobs."""
    blobs: dict[BlobName, bytes] = {}
    engine.admit(request)
    engine.start(request.request_id)

    def publish(exports: tuple[BlockRef, ...]) -> None:
        blobs.update(read_blocks(engine, exports))
        engine.release_exports(exports)

    return drive(engine, publish=publish)[request.request_id], blobs


def import_blocks(
    engine: Engine, request: Request, blobs: dict[BlobName, bytes], lost: Collection[BlobName] = ()
) -> int:
    """Admit and start `request` with `blobs`, of which `lost` are promised and never come.
    Returns the tokens that need no computing."""
    admission = engine.admit(request, blobs.keys())
    filled = set()
    for ref in admission.missing:
        if ref.name in lost:
            view = engine.block_view(ref.group, ref.block)
            view[: len(view) // 2] = b"\xff" * (len(view) // 2)  # half a copy: NaN and garbage
        else:
            engine.block_view(ref.group, ref.block)[:] = blobs[ref.name]
            filled.add(ref.name)
    return engine.start(request.request_id, filled)


def assert_idle(engine: Engine) -> None:
    """Nothing is left of any request."""
    engine.check_integrity()
    status = engine.status()
    assert (status.running, status.waiting, status.held_tokens) == (0, 0, 0)
    assert [group.used_blocks for group in status.groups] == [0] * len(status.groups)
