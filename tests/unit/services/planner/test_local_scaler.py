"""`baton up` as an orchestrator, by its two files."""

import errno
import logging
import os

import pytest

from baton.local.identity import ProcessIdentity
from baton.local.paths import RunDir
from baton.local.problem import Problem
from baton.local.replicas import Replicas, Wanted, exclusive
from baton.local.state import Kind, Phase, ProcessState, State
from baton.naming import WorkerId
from baton.policy.fleet import Role
from services.planner import local_scaler
from services.planner.decision import Cause, Change
from services.planner.local_scaler import LocalScaler, in_scalers_words
from services.planner.observation import Pool
from services.planner.scaler import ScaleConflict, ScaleDenied, ScaleUnavailable

WHY = "fewer have been enough for 300 s"
FEWER = Change(Role.DECODE, 3, 2, Cause.SURPLUS, WHY, (WorkerId("decode-1"),))
MORE = Change(Role.PREFILL, 1, 2, Cause.QUEUE, "9 s of prompts wait for 1 worker")


def process(name, *, ready=True, stopping=False):
    kind = Kind(name.partition("-")[0])
    return ProcessState(name, kind, 1, "", "", "", "", ready, stopping)


@pytest.fixture
def run_dir(tmp_path):
    """The directory of a `baton up` that this process would be."""
    return RunDir(tmp_path)


@pytest.fixture
def scaler(run_dir):
    tell(run_dir, "router", "planner", "prefill-0", "decode-0", "decode-1", "decode-2")
    Replicas(Wanted(1), Wanted(3)).write(run_dir.replicas)
    return LocalScaler(run_dir.replicas, run_dir.state)


def tell(run_dir, *processes, phase=Phase.READY, supervisor=None):
    own = supervisor or ProcessIdentity.of(os.getpid())
    made = tuple(process(one) if isinstance(one, str) else one for one in processes)
    State(own, phase, "127.0.0.1:7600", "tiny", 0.0, made).write(run_dir)


async def test_pools_are_what_is_asked_for_and_what_serves(run_dir, scaler):
    assert await scaler.pools() == {Role.PREFILL: Pool(1, 1), Role.DECODE: Pool(3, 3)}
    new, leaving = process("decode-1", ready=False), process("decode-2", stopping=True)
    tell(run_dir, "prefill-0", "decode-0", new, leaving, phase=Phase.STARTING)
    assert await scaler.pools() == {Role.PREFILL: Pool(1, 1), Role.DECODE: Pool(3, 1)}


async def test_a_change_is_in_the_file_with_its_victims_and_why(run_dir, scaler):
    await scaler.apply(FEWER)
    expected = Replicas(Wanted(1), Wanted(2, ("decode-1",), WHY))
    assert Replicas.read(run_dir.replicas) == expected
    await scaler.apply(MORE)
    assert Replicas.read(run_dir.replicas) == expected.changed(
        Role.PREFILL, Wanted(2, (), MORE.why)
    )
    assert (await scaler.pools())[Role.PREFILL] == Pool(replicas=2, ready=1)


async def test_who_was_outrun_is_told_and_changes_nothing(run_dir, scaler):
    await scaler.apply(FEWER)
    before = run_dir.replicas.read_bytes()
    with pytest.raises(ScaleConflict, match="2 decode workers are asked for by now, not 3"):
        await scaler.apply(FEWER)
    with exclusive(run_dir.replicas), pytest.raises(ScaleConflict, match="someone else changes"):
        await scaler.apply(MORE)
    assert run_dir.replicas.read_bytes() == before
    await scaler.apply(MORE)


async def test_without_a_supervisor_nothing_is_read_or_written(run_dir, scaler):
    before = run_dir.replicas.read_bytes()

    async def refused(words):
        with pytest.raises(ScaleUnavailable, match=words):
            await scaler.pools()
        with pytest.raises(ScaleUnavailable, match=words):
            await scaler.apply(MORE)

    tell(run_dir, supervisor=ProcessIdentity(os.getpid(), "another time"))
    await refused("no `baton up` that lives")
    tell(run_dir, phase=Phase.STOPPING)
    await refused("is stopping")
    run_dir.state.unlink()
    await refused("no `baton up` that lives")
    assert run_dir.replicas.read_bytes() == before


async def test_a_file_that_cannot_be_understood_is_named(run_dir, scaler):
    run_dir.replicas.write_text('{"prefill": {"workers": 1}}')
    for call in (scaler.pools(), scaler.apply(MORE)):
        with pytest.raises(ScaleUnavailable, match=r"replicas\.json cannot be understood"):
            await call
    run_dir.replicas.unlink()
    with pytest.raises(ScaleUnavailable, match="No such file"):
        await scaler.pools()


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
async def test_a_directory_that_may_not_be_written_is_a_denial(run_dir, scaler):
    run_dir.path.chmod(0o500)
    try:
        with pytest.raises(ScaleDenied, match="Permission denied"):
            await scaler.apply(MORE)
    finally:
        run_dir.path.chmod(0o700)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/f"), ScaleDenied),
        (OSError(errno.ENOSPC, "No space left on device", "/f"), ScaleUnavailable),
        (ScaleConflict("look again"), ScaleConflict),
        (Problem("look again"), ScaleUnavailable),
    ],
)
def test_errors_are_those_of_scalers(error, kind):
    def fail():
        raise error

    with pytest.raises(kind, match=getattr(error, "strerror", None) or "look again"):
        in_scalers_words(fail)


def test_a_file_that_may_not_be_read_is_a_denial():
    def fail():
        raise Problem("cannot read /f") from PermissionError(errno.EACCES, "Permission denied")

    with pytest.raises(ScaleDenied, match="cannot read /f"):
        in_scalers_words(fail)


async def test_decisions_are_kept_in_a_file_that_does_not_grow_forever(
    run_dir, scaler, monkeypatch, caplog
):
    await scaler.tell(FEWER, dry_run=False)
    await scaler.tell(MORE, dry_run=True)
    path = run_dir.path / "decisions.log"
    first, second = path.read_text().splitlines()
    assert first.endswith(f" decode 3 -> 2 (stopping decode-1), surplus: {WHY}")
    assert second.endswith(f" prefill 1 -> 2, queue: {MORE.why} [dry run]")
    monkeypatch.setattr(local_scaler, "MAX_LOG_BYTES", 10)
    await scaler.tell(MORE, dry_run=False)
    assert len(path.read_text().splitlines()) == 1
    assert len((run_dir.path / "decisions.log.1").read_text().splitlines()) == 2
    path.unlink()
    path.mkdir()
    with caplog.at_level(logging.WARNING):
        await scaler.tell(MORE, dry_run=False)
    assert "Is a directory" in caplog.text or "Not a directory" in caplog.text
