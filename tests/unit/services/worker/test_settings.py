"""What a worker is told, and what is derived from it."""

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from baton.policy.fleet import GROWTH_TOKENS, Role
from services.worker.assembly import engine_config
from tests.support.workers import make_settings


def settings(**values):
    return make_settings(Role.DECODE, Path("/models/tiny-3.gguf"), "127.0.0.1:1", **values)


@pytest.mark.parametrize(("cores", "expected"), [("", None), ("3", {3}), ("0, 2,5", {0, 2, 5})])
def test_cores_are_a_list_of_numbers(cores, expected):
    assert settings(cores=cores).core_set == expected


@pytest.mark.parametrize("cores", ["a", "1-3", "-1"])
def test_other_cores_are_refused(cores):
    with pytest.raises(ValidationError, match="number of a CPU"):
        settings(cores=cores)


def test_the_model_is_named_after_its_file_unless_told_otherwise():
    assert settings().model_name == "tiny-3"
    assert settings(served_name="demo").model_name == "demo"


def test_addresses_may_lack_their_brackets():
    """As where an orchestrator puts a pod's address before a port."""
    made = make_settings(
        Role.DECODE, Path("/models/tiny-3.gguf"), "fd00::1:7610", advertise="fd00::1:7601"
    )
    assert (made.advertise, made.transfer) == ("[fd00::1]:7601", "[fd00::1]:7610")


def test_the_engine_gets_its_part():
    config = engine_config(settings(dtype="bfloat16", threads=2, block_size=8, max_sequences=3))
    assert (config.dtype, config.threads) == (torch.bfloat16, 2)
    assert (config.block_size, config.max_sequences, config.kv_bytes) == (8, 3, 4 << 20)


def test_flags_and_environment_reach_the_settings(monkeypatch):
    monkeypatch.setenv("BATON_FLEET", "from-the-environment")
    given = type(settings())(
        _cli_parse_args=["--model", "/models/x", "--kv-bytes", "1000", "--worker-id", "decode-7"]
    )
    assert (given.fleet, given.kv_bytes, given.worker_id) == (
        "from-the-environment", 1000, "decode-7",
    )  # fmt: skip


def test_room_grows_unless_told_that_it_does_not():
    assert engine_config(settings()).growth_tokens == GROWTH_TOKENS
    assert engine_config(settings(growth_tokens=0)).growth_tokens is None
