"""The real `baton up` on a tiny model: up, generate, status, down, and what is left after."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from baton.local.state import Phase
from tests.support.up_process import SOON, UpProcess, assert_all_gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /dev/shm and /proc")


@pytest.fixture
def baton(model, tmp_path):
    process = UpProcess(tmp_path, fakes=False)
    process.model = model
    yield process
    process.clean_up()


def segments_of(state) -> list[str]:
    """Shared-memory files that processes of this Baton have mapped."""
    maps = [Path(f"/proc/{one.pid}/maps").read_text() for one in state.processes]
    lines = [line for text in maps for line in text.splitlines() if "/dev/shm/" in line]
    return sorted({line.split(maxsplit=5)[5] for line in lines})


def test_up_generate_status_down(baton):
    flags = ("--shared-memory=32MiB", "--service-flag=router:--disaggregation=always")
    done = baton.run(*baton.up_arguments("--detach", "--dtype=float32", *flags))
    assert done.returncode == 0, done.stderr
    state = baton.wait_phase(Phase.READY)
    address = f"--address={baton.address}"

    texts = [
        baton.run("generate", "Once upon a time", address, "--max-tokens=20", "--seed=3")
        for _ in range(2)
    ]
    assert all(text.returncode == 0 for text in texts), texts[0].stderr
    assert len(texts[0].stdout) > 1
    assert texts[0].stdout == texts[1].stdout
    refused = baton.run("generate", "", address)
    assert refused.returncode == 1
    assert refused.stderr.startswith("baton: text")

    shown = baton.run("status", address, "--json", "--check")
    assert shown.returncode == 0, shown.stderr
    fleet = json.loads(shown.stdout)
    work = {worker["record"]["worker_id"]: worker["status"] for worker in fleet["workers"]}
    assert set(work) == {"prefill-0", "decode-0"}
    assert work["prefill-0"]["prefilled_tokens"] > 0
    assert work["prefill-0"]["sampled_tokens"] == 2
    assert work["decode-0"]["sampled_tokens"] >= 2
    assert work["prefill-0"]["published_blobs"] > 0
    assert work["decode-0"]["fetched_blobs"] > 0
    assert fleet["router"]["completed_requests"] == 2
    pids = {process.name: process.pid for process in state.processes}
    known = {worker["record"]["worker_id"]: worker["record"]["pid"] for worker in fleet["workers"]}
    assert known.items() <= pids.items()
    assert fleet["router"]["pid"] == pids["router"]
    assert fleet["transfers"][0]["status"]["pid"] == pids["transfer"]
    table = baton.run("status", address)
    assert "prefill-0" in table.stdout

    segments = segments_of(state)
    assert segments
    down = baton.run("down", f"--run-dir={baton.run_dir}")
    assert down.returncode == 0, down.stderr
    assert_all_gone(state)
    assert not any(os.path.exists(segment) for segment in segments)
    log = (baton.run_dir / "logs" / "up.log").read_text()
    assert "had to kill" not in log


def test_a_killed_supervisor_leaves_no_process_and_no_shared_memory(baton):
    process = baton.up("--dtype=float32", "--shared-memory=32MiB")
    state = baton.wait_phase(Phase.READY)
    segments = segments_of(state)
    assert segments
    process.send_signal(signal.SIGKILL)
    process.wait(SOON)
    assert_all_gone(state)
    assert not any(os.path.exists(segment) for segment in segments)


def test_a_model_that_cannot_be_loaded_is_named(baton, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\0\0\0 and then nothing that makes sense")
    baton.model = broken
    done = baton.run(*baton.up_arguments())
    assert done.returncode == 1
    assert " died (exit code 1)" in done.stderr
    assert "broken.gguf" in done.stderr
    assert "Traceback" not in done.stderr
