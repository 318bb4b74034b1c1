import threading

import pytest

from baton import errors
from services.router.intake import Intake
from services.router.validation import RequestFields, SamplingFields, TextPrompt, TokenPrompt
from tests.support.router_parts import LIMITS, FakeFleet, Letters


class Watched(Letters):
    """Says which thread tokenizes."""

    def encode(self, text):
        self.thread = threading.current_thread()
        return super().encode(text)


def intake(tokenizer=None, fleet=None, name=""):
    return Intake(tokenizer or Letters(), fleet or FakeFleet(), name, default_max_tokens=100)


async def test_tokenizes_in_a_thread():
    tokenizer = Watched()
    await intake(tokenizer).accept(RequestFields(TextPrompt("a")))
    assert tokenizer.thread is not threading.main_thread()


async def test_default_max_tokens_is_cut_to_the_room():
    one = intake()
    for length, expected in ((10, 100), (200, LIMITS.context_tokens - 200)):
        accepted = await one.accept(RequestFields(TokenPrompt((1,) * length)))
        assert accepted.generation.max_tokens == expected
        assert accepted.ending.max_tokens == expected


async def test_end_tokens_are_the_models_unless_ignored():
    fields = SamplingFields(stop_token_ids=(7,), min_tokens=2)
    accepted = await intake().accept(RequestFields(TextPrompt("a"), sampling=fields))
    assert accepted.ending.end_ids == {0, 7}
    assert accepted.ending.min_tokens == 2
    fields = SamplingFields(stop_token_ids=(7,), ignore_eos=True)
    accepted = await intake().accept(RequestFields(TextPrompt("a"), sampling=fields))
    assert accepted.ending.end_ids == {7}


async def test_own_name_goes_before_the_workers():
    assert intake().model().limits.name == "letters"
    renamed = intake(name="mine")
    assert renamed.model().limits.name == "mine"
    with pytest.raises(errors.NotFound):
        await renamed.accept(RequestFields(TextPrompt("a"), model="letters"))


def test_model_is_known_from_the_first_worker_on():
    fleet = FakeFleet()
    fleet.limits = None
    one = intake(fleet=fleet)
    with pytest.raises(errors.Unavailable) as raised:
        one.model()
    assert raised.value.retry_after > 0
    fleet.limits = LIMITS
    assert one.model().limits.context_tokens == LIMITS.context_tokens
    fleet.limits = None
    assert one.model().limits.context_tokens == LIMITS.context_tokens
