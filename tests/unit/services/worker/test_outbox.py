"""What the engine puts out reaches the right reader, and no exported block is lost."""

import asyncio
import threading

import pytest

from baton.errors import InternalError
from baton.naming import BlobName
from engine.types import BlockRef, SampledToken, SequenceOutput
from services.worker.outbox import Outbox


def block(number: int) -> BlockRef:
    return BlockRef(BlobName(bytes([number]) * 16), 0, number, number, 4)


def output(key: str, token: int, exports: tuple[BlockRef, ...] = ()) -> SequenceOutput:
    return SequenceOutput(key, (SampledToken(token),), 1, exports, None)


@pytest.fixture
def released():
    return []


@pytest.fixture
async def outbox(released):
    return Outbox(released.extend, stall_s=0.05)


def hand_in(outbox: Outbox, outputs: list[SequenceOutput]) -> None:
    thread = threading.Thread(target=outbox.hand_in, args=(outputs,))
    thread.start()
    thread.join()


async def test_outputs_from_another_thread_arrive_in_order(outbox):
    one, two = outbox.open("one"), outbox.open("two")
    hand_in(outbox, [output("one", 1), output("two", 7)])
    hand_in(outbox, [output("one", 2)])
    assert [(await one.next()).tokens[0].token_id for _ in range(2)] == [1, 2]
    assert (await two.next()).tokens[0].token_id == 7


async def test_exports_that_nobody_reads_are_given_back(outbox, released):
    outbox.open("left")
    hand_in(outbox, [output("left", 1, (block(1),)), output("unknown", 1, (block(2),))])
    await asyncio.sleep(0)
    assert released == [block(2)]
    outbox.close("left")
    hand_in(outbox, [output("left", 2, (block(3),))])
    await asyncio.sleep(0)
    assert released == [block(2), block(1), block(3)]
    assert len(outbox) == 0


async def test_a_failure_comes_before_what_was_not_read(outbox):
    stream = outbox.open("one")
    reading = asyncio.create_task(stream.next())
    await asyncio.sleep(0)
    stream.fail(InternalError("the engine failed"))
    stream.fail(InternalError("a second error changes nothing"))
    stream.put(output("one", 1))
    for _ in range(2):
        with pytest.raises(InternalError, match="engine failed"):
            await reading
        reading = asyncio.create_task(stream.next())
    with pytest.raises(InternalError, match="engine failed"):
        await reading


async def test_an_engine_that_stands_still_is_noticed(outbox):
    with pytest.raises(InternalError, match="no step"):
        await outbox.open("one").next()


async def test_a_sequence_may_wait_long_while_the_engine_serves_others(outbox):
    patient = outbox.open("patient")
    reading = asyncio.create_task(patient.next())
    for _ in range(8):
        hand_in(outbox, [output("others", 1)])
        await asyncio.sleep(0.02)
    assert not reading.done()
    hand_in(outbox, [output("patient", 5)])
    assert (await reading).tokens[0].token_id == 5


async def test_a_key_has_one_stream(outbox):
    outbox.open("one")
    with pytest.raises(InternalError):
        outbox.open("one")


async def test_tokens_are_told_as_they_come_and_each_step_once(released):
    tokens, steps = [], []
    outbox = Outbox(released.extend, on_delivered=lambda: steps.append(len(tokens)))
    outbox.open("one", tokens.append)
    hand_in(outbox, [output("one", 1), output("unknown", 1)])
    hand_in(outbox, [output("one", 2)])
    await asyncio.sleep(0)
    assert (tokens, steps) == ([1, 1], [1, 2])
