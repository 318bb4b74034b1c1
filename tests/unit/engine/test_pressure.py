"""Anything in any order in small pools: texts stay right, structures sound, work goes on.

Two engines exchange blobs. They admit for life or for what comes next; sequences are handed over
at any moment, and preempted. Their model's KV are the tokens themselves, so a block that is
stale, foreign or half filled fails the run at the read, and every text is known beforehand.
"""

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from baton.naming import BlobName
from engine.engine import Engine
from engine.errors import NoRoom
from engine.types import BlockRef, FinishReason, Request, SequenceOutput
from tests.support.engines import assert_idle, greedy, read_blocks
from tests.support.fake_model import FakeModel
from tests.unit.engine.growing import growing_engine

BASES = ([*range(60)], [*range(20), *range(50, 90)], [*range(90, 40, -1)])
"""Texts, two of them with a common beginning."""
losses = st.sampled_from([(), (), (0,), (1, 2), (3,), tuple(range(50))])
"""Places in `missing` that are not filled."""


class Side:
    """One engine, and what its worker would know."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.running: dict[str, tuple[Request, list[int]]] = {}
        self.waiting: dict[str, tuple[Request, tuple[BlockRef, ...]]] = {}
        self.pinned: list[tuple[BlockRef, bytes]] = []

    def admit(self, request: Request, blobs: dict[BlobName, bytes]) -> bool:
        fits = self.engine.can_admit(request)
        available = set(self.engine.names(request)) & blobs.keys()
        try:
            admission = self.engine.admit(request, available)
        except NoRoom:
            assert not fits
            return False
        assert fits
        assert admission.local_tokens <= admission.cached_tokens < len(request.tokens)
        assert {ref.name for ref in admission.missing} <= available
        self.waiting[request.request_id] = request, admission.missing
        return True

    def start(self, request_id: str, blobs: dict[BlobName, bytes], lost: tuple[int, ...]) -> None:
        request, missing = self.waiting.pop(request_id)
        filled = set()
        for place, ref in enumerate(missing):
            view = self.engine.block_view(ref.group, ref.block)
            if place in lost or ref.name not in blobs:
                view[:] = b"\xff" * len(view)
            else:
                view[:] = blobs[ref.name]
                filled.add(ref.name)
        self.engine.start(request_id, filled)
        self.running[request_id] = request, []

    def step(self) -> list[SequenceOutput]:
        had_work = self.engine.has_work
        outputs = self.engine.step()
        free = not self.pinned and not self.waiting
        assert outputs or not self.running or not free, "sequences wait for nothing"
        left = {output.request_id for output in outputs if output.finish_reason}
        if free and self.running.keys() - left and not any(output.exports for output in outputs):
            assert self.engine.last_shape is not None, "a step computes nothing"
        assert had_work or not outputs
        return outputs

    def cancel(self, request_id: str) -> None:
        self.engine.cancel(request_id)
        self.engine.cancel(request_id)
        assert not self.engine.hand_over(request_id)
        self.running.pop(request_id, None)
        self.waiting.pop(request_id, None)

    def hand_over(self, request_id: str) -> None:
        assert self.engine.hand_over(request_id)
        assert not self.engine.hand_over(request_id)
        assert self.engine.has_work
        if request_id in self.waiting:
            self.running[request_id] = self.waiting.pop(request_id)[0], []

    def release(self, keep: int) -> None:
        for ref, data in self.pinned[keep:]:
            assert self.engine.block_view(ref.group, ref.block) == data, "a pinned block changed"
        self.engine.release_exports(ref for ref, _ in self.pinned[keep:])
        del self.pinned[keep:]


class EnginesUnderPressure(RuleBasedStateMachine):
    @initialize(
        kv_bytes=st.sampled_from([900, 1_500, 2_500]),
        windows=st.sampled_from([(None, 6), (None,), (None, 9, 3), (5,)]),
        max_step_tokens=st.sampled_from([4, 7, 16]),
        growth=st.sampled_from([None, 1, 3, 10]),
    )
    def make(
        self,
        kv_bytes: int,
        windows: tuple[int | None, ...],
        max_step_tokens: int,
        growth: int | None,
    ) -> None:
        self.model = FakeModel(windows)
        self.sides = [
            Side(
                growing_engine(
                    growth, windows=windows, kv_bytes=kv_bytes, max_sequences=4, max_position=100,
                    max_step_tokens=max_step_tokens, checkpoint_blocks=2,
                )
            )
            for _ in range(2)
        ]  # fmt: skip
        self.blobs: dict[BlobName, bytes] = {}
        self.handed_over: list[Request] = []
        self.made = 0

    @rule(
        side=st.integers(0, 1),
        base=st.sampled_from(BASES),
        length=st.integers(1, 30),
        max_tokens=st.integers(1, 40),
        hand_over=st.sampled_from([None, 1, 1, 2]),
        export=st.booleans(),
        salt=st.sampled_from([b"", b"", b"tenant"]),
        priority=st.sampled_from([0, 0, 1]),
        lost=losses,
        waits=st.sampled_from([False, False, True]),
    )
    def begin(self, side, base, length, max_tokens, hand_over, export, salt, priority, lost, waits):
        request = Request(
            "", tuple(base[:length]), greedy(max_tokens), salt=salt,
            hand_over_after=hand_over, export=export, priority=priority,
        )  # fmt: skip
        self._admit(self.sides[side], request, lost, waits)

    @precondition(lambda self: self.handed_over)
    @rule(
        side=st.integers(0, 1),
        pick=st.integers(0, 9),
        lost=losses,
        waits=st.sampled_from([False, False, True]),
    )
    def resume(self, side, pick, lost, waits):
        request = self.handed_over[-1 - pick % len(self.handed_over)]
        self._admit(self.sides[side], request, lost, waits)

    def _admit(self, side: Side, request: Request, lost: tuple[int, ...], waits: bool) -> None:
        request = replace(request, request_id=f"r{self.made}")
        self.made += 1
        if request.life_tokens > side.engine.limits.context_tokens:
            return
        if side.admit(request, self.blobs) and not waits:
            side.start(request.request_id, self.blobs, lost)

    @rule(side=st.integers(0, 1), lost=losses)
    def start_one(self, side, lost):
        if self.sides[side].waiting:
            self.sides[side].start(next(iter(self.sides[side].waiting)), self.blobs, lost)

    @rule(side=st.integers(0, 1), count=st.integers(5, 40))
    def steps(self, side, count):
        for _ in range(count):
            self._step(self.sides[side])

    def _step(self, side: Side) -> None:
        for output in side.step():
            request, text = side.running[output.request_id]
            text += [token.token_id for token in output.tokens]
            blobs = read_blocks(side.engine, output.exports)
            self.blobs.update(blobs)
            side.pinned += [(ref, blobs[ref.name]) for ref in output.exports]
            if output.finish_reason is not None:
                del side.running[output.request_id]
                self._finish(request, text, output.finish_reason)

    def _finish(self, request: Request, text: list[int], reason: FinishReason) -> None:
        assert text == (self.model.greedy(request.tokens, len(text)) if text else [])
        if reason in (FinishReason.HANDOVER, FinishReason.PREEMPTED):
            if len(text) < request.new_tokens:
                if request.hand_over_after is not None:
                    request = replace(request, hand_over_after=request.hand_over_after - len(text))
                self.handed_over.append(replace(request, emitted=request.emitted + tuple(text)))
                return
            assert reason is FinishReason.HANDOVER
        assert len(text) == request.new_tokens
        ended = request.new_tokens + len(request.emitted) == request.sampling.max_tokens
        assert reason is (FinishReason.LENGTH if ended else FinishReason.HANDOVER)
        if not ended:
            emitted = request.emitted + tuple(text)
            self.handed_over.append(replace(request, emitted=emitted, hand_over_after=None))

    @rule(side=st.integers(0, 1), pick=st.integers(0, 9))
    def cancel(self, side, pick):
        live = [*self.sides[side].running, *self.sides[side].waiting]
        if pick < len(live):
            self.sides[side].cancel(live[pick])

    @rule(side=st.integers(0, 1), pick=st.integers(0, 9))
    def hand_over(self, side, pick):
        live = [*self.sides[side].running, *self.sides[side].waiting]
        if pick < len(live) and live[pick] not in self.sides[side].engine._departures:
            self.sides[side].hand_over(live[pick])

    @rule(side=st.integers(0, 1), keep=st.integers(0, 5))
    def release(self, side, keep):
        self.sides[side].release(keep)

    @precondition(lambda self: len(self.blobs) > 20)
    @rule()
    def forget_blobs(self):
        self.blobs = dict(list(self.blobs.items())[::2])

    @invariant()
    def is_sound(self):
        for side in getattr(self, "sides", ()):
            side.engine.check_integrity()

    def teardown(self):
        for side in getattr(self, "sides", ()):
            for request_id in list(side.waiting):
                side.cancel(request_id)
            side.release(0)
            while side.running:
                self._step(side)
                side.release(0)
            assert_idle(side.engine)


TestEnginesUnderPressure = EnginesUnderPressure.TestCase
TestEnginesUnderPressure.settings = settings(
    max_examples=100,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
