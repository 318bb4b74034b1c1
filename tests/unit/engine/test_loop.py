"""The engine's thread: serves calls, steps while there is work, ends when told or broken."""

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from engine.engine import Engine
from engine.errors import LoopStopped, UnknownRequest
from engine.kv.changes import CacheChanges
from engine.loop import EngineLoop
from engine.steps import StepReport
from engine.types import BlockRef, FinishReason, Request, SequenceOutput
from tests.support.engines import assert_idle, fake_engine, greedy
from tests.support.fake_model import FakeModel

DEADLINE = 10.0


class Listener:
    """Collects what the loop tells."""

    def __init__(self) -> None:
        self.outputs: list[SequenceOutput] = []
        self.failures: list[BaseException] = []
        self.threads: set[str] = set()
        self._changed = threading.Condition()

    def on_outputs(self, outputs: list[SequenceOutput]) -> None:
        with self._changed:
            self.threads.add(threading.current_thread().name)
            self.outputs += outputs
            self._changed.notify_all()

    def on_failure(self, error: BaseException) -> None:
        with self._changed:
            self.failures.append(error)
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, DEADLINE)

    def finished(self, request_id: str) -> bool:
        return any(o.request_id == request_id and o.finish_reason for o in self.outputs)


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def engine() -> Engine:
    return fake_engine()


@pytest.fixture
def loop(engine: Engine, listener: Listener) -> Iterator[EngineLoop]:
    loop = EngineLoop(engine, listener.on_outputs, listener.on_failure)
    loop.start()
    yield loop
    loop.stop(DEADLINE)


def submit(loop: EngineLoop, request: Request) -> None:
    loop.call(lambda engine: engine.admit(request)).result(DEADLINE)
    loop.call(lambda engine: engine.start(request.request_id)).result(DEADLINE)


def test_it_tells_how_long_the_step_or_call_takes_that_runs(engine, loop, listener) -> None:
    assert loop.busy_s == 0.0
    entered, leave = threading.Event(), threading.Event()

    def hold(_engine: Engine) -> None:
        entered.set()
        leave.wait(DEADLINE)

    held = loop.call(hold)
    assert entered.wait(DEADLINE)
    before = loop.busy_s
    time.sleep(0.02)
    assert loop.busy_s >= before + 0.02
    leave.set()
    held.result(DEADLINE)
    step, entered, leave = engine.step, threading.Event(), threading.Event()

    def slow() -> list[SequenceOutput]:
        hold(engine)
        return step()

    engine.step = slow
    submit(loop, Request("r", tuple(range(20)), greedy(2)))
    assert entered.wait(DEADLINE)
    time.sleep(0.02)
    assert loop.busy_s >= 0.02
    leave.set()
    listener.wait(lambda: listener.finished("r"))
    deadline = time.monotonic() + DEADLINE
    while loop.busy_s:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    loop.stop(DEADLINE)
    assert loop.busy_s == 0.0


def test_a_request_runs_on_the_engines_thread(engine, loop, listener) -> None:
    submit(loop, Request("r", tuple(range(20)), greedy(6)))
    listener.wait(lambda: listener.finished("r"))
    tokens = [token.token_id for output in listener.outputs for token in output.tokens]
    assert tokens == FakeModel((None, 6)).greedy(range(20), 6)
    assert listener.threads == {"engine"}
    loop.call(assert_idle).result(DEADLINE)


def test_calls_are_served_while_idle_and_while_computing(loop, listener) -> None:
    assert loop.call(lambda engine: engine.status().steps).result(DEADLINE) == 0
    submit(loop, Request("r", (1,), greedy(190)))
    steps = [loop.call(lambda engine: engine.status().steps).result(DEADLINE) for _ in range(3)]
    assert not listener.finished("r") or steps[0] < 190
    loop.call(lambda engine: engine.cancel("r")).result(DEADLINE)
    loop.call(assert_idle).result(DEADLINE)


def test_what_a_call_raises_is_the_callers(loop) -> None:
    with pytest.raises(UnknownRequest):
        loop.call(lambda engine: engine.start("nobody")).result(DEADLINE)
    assert loop.call(lambda engine: engine.status().running).result(DEADLINE) == 0


def test_a_cancelled_call_does_not_run(engine, listener) -> None:
    loop = EngineLoop(engine, listener.on_outputs, listener.on_failure)
    loop.start()
    gate, ran = threading.Event(), []
    loop.call(lambda engine: gate.wait(DEADLINE))
    future = loop.call(lambda engine: ran.append(1))
    assert future.cancel()
    gate.set()
    loop.call(lambda engine: None).result(DEADLINE)
    assert ran == []
    loop.stop(DEADLINE)


def test_a_failing_step_ends_the_loop_and_all_calls(engine, loop, listener) -> None:
    def submit_and_break(engine: Engine) -> None:
        engine.admit(Request("r", (1,), greedy(5)))
        engine.start("r")
        engine._runner._model.fail_next = True

    loop.call(submit_and_break).result(DEADLINE)
    listener.wait(lambda: bool(listener.failures))
    assert "the model failed" in str(listener.failures[0])
    with pytest.raises(LoopStopped, match="the model failed"):
        loop.call(lambda engine: None).result(DEADLINE)
    assert len(listener.failures) == 1


def test_failing_outputs_end_the_loop_too(engine, listener) -> None:
    def broken(outputs: list[SequenceOutput]) -> None:
        raise ValueError("nobody listens")

    loop = EngineLoop(engine, broken, listener.on_failure)
    loop.start()
    submit(loop, Request("r", (1,), greedy(5)))
    listener.wait(lambda: bool(listener.failures))
    loop.stop(DEADLINE)


def test_calls_queued_behind_a_stop_fail(engine, listener) -> None:
    loop = EngineLoop(engine, listener.on_outputs, listener.on_failure)
    loop.start()
    gate = threading.Event()
    loop.call(lambda engine: gate.wait(DEADLINE))
    with pytest.raises(TimeoutError):
        loop.stop(0.05)
    late = loop.call(lambda engine: None)
    gate.set()
    with pytest.raises(LoopStopped, match="stopped"):
        late.result(DEADLINE)
    loop.stop(DEADLINE)
    with pytest.raises(LoopStopped):
        loop.call(lambda engine: None).result(DEADLINE)
    assert listener.failures == []


def test_a_loop_that_never_started_refuses_calls(engine, listener) -> None:
    loop = EngineLoop(engine, listener.on_outputs, listener.on_failure)
    with pytest.raises(LoopStopped, match="not started"):
        loop.call(lambda engine: None).result(DEADLINE)
    loop.stop(DEADLINE)


def test_stop_ends_a_running_sequence_between_two_steps(loop, listener) -> None:
    submit(loop, Request("r", (1,), greedy(190)))
    listener.wait(lambda: bool(listener.outputs))
    started = time.monotonic()
    loop.stop(DEADLINE)
    assert time.monotonic() - started < DEADLINE / 2


def test_the_thread_keeps_to_its_cores(engine, listener) -> None:
    core = {min(os.sched_getaffinity(0))}
    before = os.sched_getaffinity(0)
    loop = EngineLoop(engine, listener.on_outputs, listener.on_failure, core=core)
    loop.start()
    assert loop.call(lambda engine: os.sched_getaffinity(0)).result(DEADLINE) == core
    loop.stop(DEADLINE)
    assert os.sched_getaffinity(0) == before


def test_a_loop_of_waiting_sequences_sleeps_until_exports_are_released(listener) -> None:
    engine = fake_engine(windows=(None, 6), kv_bytes=900, max_sequences=2, max_position=30)
    loop = EngineLoop(engine, listener.on_outputs, listener.on_failure)
    loop.start()

    def pinned() -> list[BlockRef]:
        return [ref for output in listener.outputs for ref in output.exports]

    stuck = None
    for i in range(6):
        request = Request(
            f"r{i}", tuple(range(i * 10, i * 10 + 20)), greedy(4), hand_over_after=1, export=True
        )
        submit(loop, request)
        while loop.call(lambda engine: engine.has_work).result(DEADLINE):
            time.sleep(0.001)
        if not listener.finished(request.request_id):
            stuck = request.request_id
            break
    assert stuck is not None
    cpu = time.process_time()
    time.sleep(0.1)
    assert time.process_time() - cpu < 0.05, "the loop spins"
    blocks = pinned()
    loop.call(lambda engine: engine.release_exports(blocks)).result(DEADLINE)
    listener.wait(lambda: listener.finished(stuck))
    assert listener.outputs[-1].finish_reason is FinishReason.HANDOVER
    loop.stop(DEADLINE)


class Followed:
    """A loop whose steps, outputs and cache changes are written down in their order."""

    def __init__(self, engine: Engine, listener: Listener) -> None:
        self.told: list[StepReport | CacheChanges | list[SequenceOutput]] = []
        self.threads: set[str] = set()
        self._listener = listener
        self.loop = EngineLoop(
            engine, self._on_outputs, listener.on_failure, on_step=self._tell, on_cache=self._tell
        )

    def _on_outputs(self, outputs: list[SequenceOutput]) -> None:
        self._tell(outputs)
        self._listener.on_outputs(outputs)

    def _tell(self, what: StepReport | CacheChanges | list[SequenceOutput]) -> None:
        self.threads.add(threading.current_thread().name)
        self.told.append(what)

    def names(self) -> set[bytes]:
        """What the changes so far add up to."""
        names: set[bytes] = set()
        for changes in self.told:
            if isinstance(changes, CacheChanges):
                names = names - set(changes.removed) | set(changes.added)
        return names


@pytest.fixture
def followed(engine: Engine, listener: Listener) -> Iterator[Followed]:
    followed = Followed(engine, listener)
    followed.loop.start()
    yield followed
    followed.loop.stop(DEADLINE)


def test_every_step_is_reported_before_its_outputs(followed, listener) -> None:
    submit(followed.loop, Request("r", tuple(range(20)), greedy(3)))
    listener.wait(lambda: listener.finished("r"))
    followed.loop.call(lambda engine: None).result(DEADLINE)
    told = [one for one in followed.told if not isinstance(one, CacheChanges)]
    reports = told[::2]
    assert all(isinstance(report, StepReport) and report.seconds > 0 for report in reports)
    assert [report.shape.prompt_tokens for report in reports] == [16, 4, 0, 0]
    assert [report.shape.context_tokens for report in reports] == [0, 0, 21, 22]
    assert all(isinstance(outputs, list) for outputs in told[1::2])
    assert followed.threads == {"engine"}


def test_a_step_that_computed_nothing_is_not_reported(followed, listener) -> None:
    def leave(engine: Engine) -> None:
        engine.admit(Request("r", (1, 2), greedy(3)))
        engine.hand_over("r")

    followed.loop.call(leave).result(DEADLINE)
    listener.wait(lambda: listener.finished("r"))
    followed.loop.call(lambda engine: None).result(DEADLINE)
    assert [type(one) for one in followed.told] == [list]


def test_cache_changes_of_steps_and_calls_are_told(followed, listener) -> None:
    submit(followed.loop, Request("r", tuple(range(20)), greedy(30)))
    listener.wait(lambda: listener.finished("r"))
    names = followed.loop.call(lambda engine: engine.cache_names()).result(DEADLINE)
    followed.loop.call(lambda engine: None).result(DEADLINE)
    assert len(names) == 12
    assert followed.names() == set(names)
    told = len(followed.told)
    followed.loop.call(lambda engine: None).result(DEADLINE)
    assert len(followed.told) == told, "nothing changed"
    followed.loop.call(lambda engine: engine.reset()).result(DEADLINE)
    followed.loop.call(lambda engine: None).result(DEADLINE)
    assert followed.names() == set()
