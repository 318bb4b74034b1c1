"""`baton status` against a scripted router."""

import json
import os
from dataclasses import replace

import pytest
from google.protobuf import duration_pb2
from typer.testing import CliRunner

from baton.cli import app
from baton.cli.wire_json import to_json
from baton.local.identity import ProcessIdentity
from baton.local.paths import RunDir
from baton.local.replicas import Replicas, Wanted
from baton.local.state import Kind, Phase, ProcessState, State
from baton.v1 import inference_pb2, kv_pb2, worker_pb2
from tests.support.fake_router import FakeRouter


def run(address, *arguments):
    return CliRunner().invoke(app, ["status", f"--address={address}", *arguments])


@pytest.fixture
def router():
    with FakeRouter() as fake:
        fill(fake.fleet)
        yield fake


def fill(fleet):
    fleet.queue.redis_available = True
    fleet.queue.waiting = 11
    fleet.router.router_id = "router-x"
    fleet.router.pid = 4242
    fleet.router.completed_requests = 2**40
    worker = fleet.workers.add()
    worker.record.worker_id = "prefill-0"
    worker.record.role = worker_pb2.WORKER_ROLE_PREFILL
    worker.record.address = "127.0.0.1:20001"
    worker.record.pid = 4243
    worker.status.steps = 31
    worker.status.prefilled_tokens = 1001
    worker.status.sampled_tokens = 1002
    worker.status.cached_tokens = 1003
    worker.status.published_blobs = 1004
    worker.status.fetched_blobs = 1005
    worker.status.kv_groups.add(name="full", total_blocks=100, used_blocks=3, cached_blocks=9)
    worker.status.kv_groups.add(name="window-8", total_blocks=50, used_blocks=2, cached_blocks=4)
    silent = fleet.workers.add()
    silent.record.worker_id = "decode-0"
    silent.record.role = worker_pb2.WORKER_ROLE_DECODE
    transfer = fleet.transfers.add()
    transfer.address = "127.0.0.1:20002"
    transfer.status.pid = 4244
    transfer.status.leases = 77
    transfer.status.blobs = 78


def test_shows_processes_and_their_work(router):
    done = run(router.address)
    assert done.exit_code == 0
    lines = done.output.splitlines()
    (prefill,) = [line for line in lines if "prefill-0" in line and "4243" in line]
    assert prefill.split()[:5] == ["prefill-0", "prefill", "4243", "127.0.0.1:20001", "ok"]
    (work,) = [line for line in lines if "prefill-0" in line and "1001" in line]
    assert "full 3/9/100, window-8 2/4/50" in work
    assert work.split()[-6:] == ["31", "1001", "1002", "1003", "1004", "1005"]
    (decode,) = [line for line in lines if "decode-0" in line]
    assert "no answer" in decode
    text = done.output
    assert "78 blobs" in text
    assert "77 leases" in text
    assert "11 waiting" in text
    assert "4242" in text
    assert "4244" in text
    assert router.checked == [False]


def test_json_has_everything_and_numbers_are_numbers(router):
    found = json.loads(run(router.address, "--json").output)
    assert found["router"]["completed_requests"] == 2**40
    assert found["workers"][0]["record"]["role"] == "WORKER_ROLE_PREFILL"
    assert found["workers"][0]["status"]["kv_groups"][1]["name"] == "window-8"
    assert found["workers"][0]["status"]["running_sequences"] == 0
    assert found["workers"][1]["status"] is None
    assert found["queue"]["redis_available"] is True


def test_check_asks_for_integrity_and_what_is_broken_fails(router):
    done = run(router.address, "--check")
    assert done.exit_code == 0
    assert done.output.endswith("integrity: nothing is wrong in 3 processes\n")
    assert router.checked == [True]
    router.fleet.workers[0].error = "block 7 is held twice"
    done = run(router.address, "--check")
    assert done.exit_code == 1
    assert done.stderr == "baton: prefill-0: block 7 is held twice\n"
    assert "nothing is wrong" not in done.output


def test_shows_what_became_of_targets_and_failures(router):
    has = router.fleet.router
    has.refused_requests, has.degraded_requests, has.ttft_held, has.itl_held = 21, 22, 23, 24
    has.resumed_sequences, has.recomputed_sequences, has.migrated_sequences = 25, 26, 27
    has.local_prompts = 28
    router.fleet.queue.queued_work.FromMilliseconds(1500)
    text = run(router.address).output
    for part in (
        "11 waiting (1.5 s of prompts)", "(23 within TTFT, 24 within ITL)", "21 refused",
        "22 degraded", "25 resumed", "26 recomputed", "27 migrated", "28 prompts beside decode",
    ):  # fmt: skip
        assert part in text
    assert "degraded:" not in text


def test_says_that_the_fleet_is_degraded(router):
    router.fleet.queue.degraded = "no decode worker is there"
    done = run(router.address)
    assert done.exit_code == 0, "it serves"
    assert done.output.endswith("degraded: no decode worker is there\n")


def test_redis_away_is_a_problem(router):
    router.fleet.queue.redis_available = False
    done = run(router.address)
    assert done.exit_code == 1
    assert done.stderr == "baton: Redis does not answer\n"


def test_not_running(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    done = run("127.0.0.1:9")
    assert done.exit_code == 1
    assert done.stderr == "baton: Baton is not running at 127.0.0.1:9. `baton up` starts it\n"


def test_starting_is_told_apart_from_not_running(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    run_dir = RunDir.of_port(9)
    run_dir.make()
    State(own, Phase.STARTING, "127.0.0.1:9", "tiny", 0.0, ()).write(run_dir)
    done = run("127.0.0.1:9")
    assert done.exit_code == 1
    assert f"is starting (pid {os.getpid()})" in done.stderr


def test_wire_json_of_every_kind_of_field():
    response = inference_pb2.GenerateResponse()
    kinds = ("delta", "completed", "prompt", "accepted")
    assert to_json(response) == dict.fromkeys(kinds)
    timings = inference_pb2.Timings(queue=duration_pb2.Duration(seconds=1, nanos=500_000_000))
    found = to_json(timings)
    assert found["queue"] == 1.5
    assert found["handoff_gap"] is None
    assert found["prefill_worker"] == ""
    assert to_json(kv_pb2.BlobRef(name=b"\x01\xff"))["name"] == "01ff"


def test_shows_what_the_planner_of_a_supervisor_here_wants(router, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    run_dir = RunDir.of_port(int(router.address.rpartition(":")[2]))
    run_dir.make()
    common = {"started": "", "log": "", "progress_file": ""}
    processes = (
        ProcessState("prefill-0", Kind.PREFILL, 1, address="a", ready=True, **common),
        ProcessState("decode-0", Kind.DECODE, 2, address="b", ready=True, stopping=True, **common),
        ProcessState("decode-1", Kind.DECODE, 3, address="c", ready=False, **common),
        ProcessState("planner", Kind.PLANNER, 987654, address="127.0.0.1:9", ready=True, **common),
    )
    State(own, Phase.READY, router.address, "tiny", 0.0, processes).write(run_dir)
    Replicas(Wanted(1), Wanted(2, ("decode-0",), "streams are slow")).write(run_dir.replicas)
    done = run(router.address)
    assert done.exit_code == 0
    (planner,) = [line for line in done.output.splitlines() if "987654" in line]
    assert planner.split() == ["planner", "planner", "987654", "127.0.0.1:9", "ok"]
    wanted = "wanted: 1 prefill, 1 ready; 2 decode, 0 ready (streams are slow)"
    assert wanted in done.output.splitlines()

    done = run("127.0.0.1:7600", f"--run-dir={run_dir.path}")
    assert wanted in done.output.splitlines()
    run_dir.replicas.write_text("{")
    done = run(router.address, f"--run-dir={run_dir.path}")
    assert "replicas.json is not JSON" in done.output
    gone = replace(own, started="another time")
    State(gone, Phase.READY, router.address, "tiny", 0.0, processes).write(run_dir)
    done = run(router.address)
    assert done.exit_code == 0
    assert "987654" not in done.output
    assert "wanted" not in done.output
