"""`baton doctor` against a scripted router, and over what it kept."""

import json

import pytest
from typer.testing import CliRunner

from baton.cli import app
from tests.support.fake_router import FakeRouter
from tests.support.snapshots import fleet, report, snapshot


def run(*arguments):
    return CliRunner().invoke(app, ["doctor", *arguments])


@pytest.fixture
def router():
    with FakeRouter() as fake:
        fake.fleet = fleet()
        yield fake


def ask(router, *arguments):
    return run(f"--address={router.address}", "--seconds=0.1", *arguments)


def test_an_idle_one_is_told_so_and_exits_with_0(router):
    result = ask(router)
    assert result.exit_code == 0
    assert result.output.startswith("idle: ")


def test_a_problem_exits_with_1_and_says_what_to_change(router):
    router.fleet.queue.redis_available = False
    result = ask(router)
    assert result.exit_code == 1
    assert result.output.startswith("problem: Redis does not answer")
    assert "> Start Redis" in result.output


def test_json(router):
    value = json.loads(ask(router, "--json").output)
    assert value["verdict"] == "idle"
    assert 0.1 <= value["seconds"] < 5


def test_what_was_seen_is_kept_and_judged_again(router, tmp_path):
    path = tmp_path / "seen.json"
    assert ask(router, f"--save={path}").exit_code == 0
    again = run(f"--snapshot={path}")
    assert (again.exit_code, again.output.partition(":")[0]) == (0, "idle")


def test_wanted_latencies(tmp_path):
    path = tmp_path / "seen.json"
    path.write_text(snapshot(requests=[report(number) for number in range(3)]).to_json())
    assert run(f"--snapshot={path}").output.startswith("healthy: ")
    strict = run(f"--snapshot={path}", "--ttft-target=0.01")
    assert strict.exit_code == 1
    assert "First tokens are late" in strict.output


def test_no_router_and_no_snapshot(tmp_path):
    result = run("--address=127.0.0.1:1", "--seconds=0.1")
    assert result.exit_code == 1
    assert "Is Baton running?" in result.output
    missing = run(f"--snapshot={tmp_path}/nothing")
    assert missing.exit_code == 1
    assert "can't be read" in missing.output


def test_a_place_that_can_not_be_written(router, tmp_path):
    result = ask(router, f"--save={tmp_path}/no/where")
    assert result.exit_code == 1
    assert "--save" in result.output
