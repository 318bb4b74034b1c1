"""Decisions on disk."""

import asyncio
import json
from contextlib import aclosing

import pytest

from baton import errors
from bench.sim.workload import load
from services.router.recording import HASHED_TOKENS, MAX_LINES, Recorder, hash_ids
from tests.support.router_parts import RouterParts, request


async def test_entries_are_lines_of_json_once_it_is_closed(tmp_path):
    path = tmp_path / "decisions.jsonl"
    recorder = Recorder(path)
    await recorder.start()
    recorder.add({"timestamp": 1, "hash_ids": [1, 2]})
    recorder.add({"timestamp": 2})
    await recorder.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"timestamp": 1, "hash_ids": [1, 2]},
        {"timestamp": 2},
    ]


async def test_what_was_there_stays(tmp_path):
    path = tmp_path / "decisions.jsonl"
    for number in range(2):
        recorder = Recorder(path)
        await recorder.start()
        recorder.add({"timestamp": number})
        await recorder.close()
    assert len(path.read_text().splitlines()) == 2


async def test_a_path_that_cannot_be_written_is_an_error_at_start(tmp_path):
    recorder = Recorder(tmp_path / "nowhere" / "decisions.jsonl")
    with pytest.raises(OSError, match="nowhere"):
        await recorder.start()


async def test_it_never_holds_more_than_it_may(tmp_path, caplog):
    path = tmp_path / "decisions.jsonl"
    recorder = Recorder(path)
    for number in range(MAX_LINES + 5):
        recorder.add({"timestamp": number})
    await recorder.start()
    await recorder.close()
    assert len(path.read_text().splitlines()) == MAX_LINES
    assert "5 decisions were not recorded" in caplog.text


def test_equal_beginnings_have_equal_ids():
    one = list(range(3 * HASHED_TOKENS + 7))
    other = [*one]
    other[2 * HASHED_TOKENS] = 0
    assert len(hash_ids(one)) == 4
    assert hash_ids(one)[:2] == hash_ids(other)[:2]
    assert all(a != b for a, b in zip(hash_ids(one)[2:], hash_ids(other)[2:], strict=True))
    assert hash_ids([]) == []


async def test_one_that_was_refused_has_the_targets_that_it_asked_for(tmp_path):
    path = tmp_path / "decisions.jsonl"
    recorder = Recorder(path)
    await recorder.start()
    parts = RouterParts(sinks=[recorder.record])
    parts.dispatcher.refusal = errors.Exhausted("too late", reason="TARGET_MISSED")
    for urgency in ({"ttft_target_s": 0.5, "itl_target_s": 0.25, "priority": 3}, {}):
        with pytest.raises(errors.Exhausted):
            await parts.run(request(urgency=urgency))
    await recorder.close()
    asked, usual = load(path)
    assert (asked.ttft_target_s, asked.itl_target_s, asked.priority) == (0.5, 0.25, 3)
    assert (usual.ttft_target_s, usual.itl_target_s, usual.priority) == (None, None, 0)


async def test_what_a_later_router_adds_comes_later_in_the_trace(tmp_path):
    path = tmp_path / "decisions.jsonl"
    for _ in range(2):
        recorder = Recorder(path)
        await recorder.start()
        await asyncio.sleep(0.02)
        await RouterParts(sinks=[recorder.record]).run()
        await recorder.close()
    first, second = load(path)
    assert second.at_s - first.at_s >= 0.019


async def test_each_request_leaves_a_line_however_it_ends(tmp_path):
    path = tmp_path / "decisions.jsonl"
    recorder = Recorder(path)
    await recorder.start()
    parts = RouterParts(sinks=[recorder.record])
    await parts.run(request(urgency={"batch": True, "tenant": "acme", "ttft_target_s": 3.0}))
    async with aclosing(parts.events(request(max_tokens=9))) as events:
        await anext(events)
    parts.legs.prefill_faults = [errors.InternalError("broken")]
    with pytest.raises(errors.InternalError):
        await parts.run()
    await recorder.close()
    completed, left, failed = map(json.loads, path.read_text().splitlines())
    assert [one["outcome"] for one in (completed, left, failed)] == [
        "completed",
        "cancelled",
        "failed",
    ]
    assert [one["reason"] for one in (completed, left, failed)] == ["", "", "INTERNAL"]
    assert (completed["input_length"], completed["output_length"]) == (6, 6)
    assert len(completed["hash_ids"]) == 1
    assert completed["timestamp"] <= left["timestamp"] <= failed["timestamp"]
    assert (completed["class"], completed["tenant"]) == ("batch", "acme")
    assert (completed["prefill_worker"], completed["decode_worker"]) == ("prefill-0", "decode-0")
    assert left["output_length"] == 9, "what was asked for: it was cut short"
    assert "prompt" not in path.read_text().replace("prompt_", "")
