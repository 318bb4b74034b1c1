"""A supervisor's workers follow the replicas file."""

import itertools
from pathlib import Path

import pytest

from baton.local.model import ServedModel
from baton.local.options import UpOptions
from baton.local.plan import make_plan
from baton.local.pools import Pools, surplus
from baton.local.replicas import Replicas, Wanted
from baton.local.state import Kind
from baton.local.supervisor import Retired
from tests.support.clock import FakeClock


class Workforce:
    """Starts nothing; ends only what it is told to."""

    def __init__(self, specs):
        self.children = {spec.name: spec for spec in specs}
        self.ending = []
        self.ended = []
        self.ready = set(self.children)
        self.full = False

    def add(self, spec):
        if self.full:
            raise OSError(11, "Resource temporarily unavailable")
        assert spec.name not in self.children
        self.children[spec.name] = spec

    def retire(self, name):
        assert name not in self.ending
        self.ending.append(name)

    def end(self, name, code=0, *, killed=False):
        self.ending.remove(name)
        del self.children[name]
        self.ended.append(Retired(name, code, killed))

    def reap(self):
        ended, self.ended = self.ended, []
        return ended

    def running(self, kind):
        return [name for name in self._of(kind) if name not in self.ending]

    def retiring(self, kind):
        return [name for name in self._of(kind) if name in self.ending]

    def _of(self, kind):
        return [name for name, spec in self.children.items() if spec.kind is kind]

    def is_ready(self, name):
        return name in self.ready


class Fixture:
    def __init__(self, directory, **options):
        ports = itertools.count(20_000)
        options = UpOptions(directory=directory, planner=True, **options)
        model = ServedModel(Path("/models/tiny"), "tiny")
        self.plan = make_plan(options, model, valkey=None, cores=(), free_port=lambda: next(ports))
        self.path = directory / "replicas.json"
        self.workforce = Workforce(self.plan.specs)
        self.said = []
        self.clock = FakeClock()
        self.pools = Pools(self.path, self.plan, self.workforce, self.said.append, self.clock)

    def want(self, prefill, decode):
        prefill, decode = (
            one if isinstance(one, Wanted) else Wanted(one) for one in (prefill, decode)
        )
        Replicas(prefill, decode).write(self.path)
        return self.reconcile()

    def reconcile(self):
        """What was said of it."""
        self.pools.reconcile()
        said, self.said[:] = list(self.said), []
        return said

    def running(self):
        return [*self.workforce.running(Kind.PREFILL), *self.workforce.running(Kind.DECODE)]


@pytest.fixture
def make(tmp_path):
    return lambda **options: Fixture(tmp_path, **options)


def test_nothing_happens_where_there_are_as_many_as_wanted(make):
    it = make()
    assert it.want(1, 1) == []
    assert it.running() == ["prefill-0", "decode-0"]


def test_further_workers_start_with_names_and_ports_of_their_own(make):
    it = make(max_prefill=2, max_decode=3)
    why = "prompts wait 9 s"
    assert it.want(Wanted(2, why=why), 3) == [
        f"starting prefill-1: {why}",
        "starting decode-1",
        "starting decode-2",
    ]
    assert it.running() == ["prefill-0", "prefill-1", "decode-0", "decode-1", "decode-2"]
    assert it.reconcile() == []
    specs = it.workforce.children.values()
    assert len({spec.address for spec in specs}) == len(specs)
    assert "services.decode" in it.workforce.children["decode-2"].command
    it.clock.advance(2.5)
    it.workforce.ready.add("decode-1")
    assert it.reconcile() == ["decode-1 ready after 2.5 s"]
    assert it.reconcile() == []


def test_victims_stop_and_their_end_is_told(make):
    it = make(decode=3)
    assert it.want(1, Wanted(2, ("decode-1",), "fewer do")) == ["stopping decode-1: fewer do"]
    assert it.running() == ["prefill-0", "decode-0", "decode-2"]
    assert it.reconcile() == []
    it.workforce.end("decode-1")
    assert it.reconcile() == ["decode-1 stopped"]
    assert it.want(1, Wanted(1, ("decode-0",))) == ["stopping decode-0"]
    it.workforce.end("decode-0", 3)
    assert it.reconcile() == ["decode-0 stopped (exit code 3)"]
    assert it.want(1, 1) == []
    assert it.running() == ["prefill-0", "decode-2"]


def test_what_had_to_be_killed_is_told(make):
    it = make(decode=2)
    it.want(1, 1)
    it.workforce.end("decode-1", -9, killed=True)
    assert it.reconcile() == ["decode-1 stopped (had to be killed)"]


def test_a_name_is_free_again_once_its_process_has_ended(make):
    it = make(decode=2, max_decode=2)
    it.want(1, Wanted(1, ("decode-0",)))
    # There may be two: the one that ends has still its memory.
    assert it.want(1, 2) == []
    assert it.running() == ["prefill-0", "decode-1"]
    it.workforce.end("decode-0")
    assert it.reconcile() == ["decode-0 stopped", "starting decode-0"]
    assert it.running() == ["prefill-0", "decode-1", "decode-0"]


def test_where_there_is_room_nobody_waits_for_the_one_that_ends(make):
    it = make(decode=2, max_decode=3)
    it.want(1, Wanted(1, ("decode-0",)))
    assert it.want(1, 2) == ["starting decode-2"]
    it.workforce.end("decode-0")
    assert it.reconcile() == ["decode-0 stopped"]


def test_one_that_starts_may_be_stopped(make):
    it = make()
    it.want(1, 2)
    assert it.want(1, 1) == ["stopping decode-1"]
    it.workforce.end("decode-1", -15)
    it.workforce.ready.discard("decode-1")
    assert it.reconcile() == ["decode-1 stopped (signal SIGTERM)"]


def test_a_file_that_cannot_be_followed_changes_nothing_and_is_told_once(make):
    it = make(max_decode=2)
    it.path.write_text("{")
    (said,) = it.reconcile()
    assert said.startswith("workers stay as they are: ")
    assert "not JSON" in said
    assert it.reconcile() == []
    (said,) = it.want(1, 3)
    assert "asks for 3 decode workers, and --max-decode is 2" in said
    assert it.running() == ["prefill-0", "decode-0"]
    assert it.want(1, 2) == ["starting decode-1"]
    it.path.unlink()
    (said,) = it.reconcile()
    assert "cannot read" in said
    assert it.running() == ["prefill-0", "decode-0", "decode-1"]


@pytest.mark.parametrize(
    "text",
    [
        b"\xff",
        b"null",
        b"[" * 200_000,
        b'{"prefill": {"workers": 1e999}, "decode": {"workers": 1}}',
        b'{"prefill": {"workers": 1}, "decode": {"workers": 2, "why": "\\ud800"}}',
        b'{"prefill": {"workers": 1}, "decode": {"workers": 2, "victims": ["\\ud800"]}}',
    ],
)
def test_whatever_the_file_holds_nothing_ends(make, text):
    it = make()
    it.path.write_bytes(text)
    (said,) = it.reconcile()
    assert said.startswith("workers stay as they are: ")
    said.encode()
    assert it.running() == ["prefill-0", "decode-0"]


def test_what_cannot_be_started_is_told_once_and_tried_again(make):
    it = make()
    it.workforce.full = True
    (said,) = it.want(1, 2)
    assert "cannot start decode-1: Resource temporarily unavailable" in said
    assert it.reconcile() == []
    it.workforce.full = False
    assert it.reconcile() == ["starting decode-1"]


def test_victims_go_first_and_then_the_newest():
    running = ["decode-0", "decode-2", "decode-1"]

    def stopped(workers, *victims, starting=()):
        return surplus(running, Wanted(workers, victims), lambda name: name not in starting)

    assert stopped(3) == []
    assert stopped(4, "decode-0") == []
    assert stopped(2) == ["decode-1"]
    assert stopped(2, "decode-2", "decode-0") == ["decode-2"]
    assert stopped(1, "gone", "decode-0", "decode-0") == ["decode-0", "decode-1"]
    # Who does not serve yet has nothing to move.
    assert stopped(2, starting=["decode-0"]) == ["decode-0"]
    assert stopped(2, "decode-1", starting=["decode-0"]) == ["decode-0"]
    assert stopped(1, "decode-1", starting=["decode-0"]) == ["decode-0", "decode-1"]
    assert stopped(1, "decode-0", starting=["decode-0", "decode-1"]) == ["decode-1", "decode-0"]


def test_a_worker_that_serves_does_not_go_while_another_starts(make):
    it = make(max_decode=3)
    it.want(1, 3)
    it.workforce.ready.add("decode-2")
    assert it.want(1, 2)[1:] == ["stopping decode-1"]
    assert it.running() == ["prefill-0", "decode-0", "decode-2"]
