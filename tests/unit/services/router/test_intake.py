import threading

import pytest

from baton import errors
from services.common.text import SamplingDefaults
from services.router.intake import Intake
from services.router.request import ChatPrompt, ClassTargets, ResumeFrom, TokenizeFields
from services.router.validation import RequestFields, SamplingFields, TextPrompt, TokenPrompt
from tests.support.router_parts import LIMITS, FakeFleet, Letters

TARGETS = ClassTargets(1.0, 0.25, 30.0, 0.5)


class Watched(Letters):
    """Says which thread tokenizes."""

    def encode(self, text):
        self.thread = threading.current_thread()
        return super().encode(text)


def intake(tokenizer=None, fleet=None, name=""):
    return Intake(tokenizer or Letters(), fleet or FakeFleet(), name, 100, TARGETS)


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


class Recommending(Letters):
    default_sampling = SamplingDefaults(
        temperature=0.25, top_k=0x200000, top_p=0.5, min_p=0.125, repetition_penalty=1.5
    )


async def test_the_models_recommendations_are_the_defaults():
    one = intake(Recommending())
    assert one.model().default_sampling is Recommending.default_sampling
    sampling = (await one.accept(RequestFields(TextPrompt("a")))).generation.sampling
    assert (sampling.temperature, sampling.top_p, sampling.min_p) == (0.25, 0.5, 0.125)
    assert sampling.repetition_penalty == 1.5
    assert sampling.top_k == LIMITS.vocab_size, "cut to what the fleet's model has"


async def test_what_a_request_says_goes_before_the_models_recommendations():
    own = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    fields = RequestFields(TextPrompt("a"), sampling=SamplingFields(**own))
    sampling = (await intake(Recommending()).accept(fields)).generation.sampling
    assert {name: getattr(sampling, name) for name in own} == own


async def test_bad_words_are_tokenized_by_themselves_and_behind_a_space():
    fields = RequestFields(TextPrompt("a"), bad_words=("no", "no", "x"))
    generation = (await intake().accept(fields)).generation
    assert generation.sampling.bad_sequences == tuple(
        tuple(map(ord, text)) for text in ("no", " no", "x", " x")
    )


async def test_each_choice_has_an_output_of_its_own():
    accepted = await intake().accept(RequestFields(TextPrompt("a"), choices=3))
    assert len(accepted.outputs) == 3 == len(set(map(id, accepted.outputs)))
    assert accepted.generation.choices == 3
    assert accepted.prompt_text is None


async def test_the_prompt_is_decoded_for_an_echo():
    accepted = await intake().accept(RequestFields(TokenPrompt((97, 98)), echo=True))
    assert accepted.prompt_text == "ab"


def test_the_targets_of_classes_are_told():
    assert intake().model().targets is TARGETS


async def test_fields_for_the_scheduler_are_checked_before_anything_is_tokenized():
    tokenizer = Watched()
    with pytest.raises(errors.InvalidRequest, match="tenant"):
        await intake(tokenizer).accept(RequestFields(TextPrompt("a"), tenant="?"))
    assert not hasattr(tokenizer, "thread")


@pytest.mark.parametrize(
    ("ids", "refused"),
    [
        ((), False),
        ((1, 2), False),
        ((1, 0), False),
        ((0,), False),
        ((0, 1), True),
        ((1, 0, 0), True),
    ],
)
async def test_a_stream_may_have_ended_but_not_before_its_last_token(ids, refused):
    fields = RequestFields(TextPrompt("a"), resume_from=ResumeFrom(7, (ids,)))
    if refused:
        with pytest.raises(errors.InvalidRequest) as raised:
            await intake().accept(fields)
        assert raised.value.field == "resume_from.emitted[0]"
        return
    generation = (await intake().accept(fields)).generation
    assert (generation.emitted, generation.sampling.seed) == ((ids,), 7)
    assert generation.resumed == bool(ids)


async def test_an_end_token_that_may_not_end_yet_may_be_followed():
    sampling = SamplingFields(min_tokens=1)
    fields = RequestFields(TextPrompt("a"), sampling=sampling, resume_from=ResumeFrom(7, ((0, 1),)))
    assert (await intake().accept(fields)).generation.emitted == ((0, 1),)


async def test_tokens_of_a_text_with_and_without_special_ones():
    class Beginning(Letters):
        def encode(self, text):
            return [1, *super().encode(text)]

    one = intake(Beginning())
    assert await one.tokenize(TokenizeFields(TextPrompt("a"))) == [1, ord("a")]
    assert await one.tokenize(TokenizeFields(TextPrompt(""))) == [1]
    bare = TokenizeFields(TextPrompt("a"), special_tokens=False)
    assert await one.tokenize(bare) == [ord("a")]


async def test_tokens_of_a_bad_conversation_are_refused():
    with pytest.raises(errors.InvalidRequest) as raised:
        await intake().tokenize(TokenizeFields(ChatPrompt(())))
    assert raised.value.field == "chat.messages"
