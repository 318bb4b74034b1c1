"""Each conversion there and back, through bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.naming import RequestId, WorkerId
from baton.v1 import inference_pb2, sampling_pb2
from baton.values import seconds
from services.common.durations import to_duration
from services.common.text import SamplingDefaults, ToolFormat
from services.router import messages
from services.router.events import (
    Admitted,
    Completed,
    CompletedChoice,
    Delta,
    FinishReason,
    PromptShown,
    SampledToken,
    Timings,
    TokenUsage,
)
from services.router.intake import ServedModel
from services.router.request import (
    ClassTargets,
    MessageFields,
    ResumeFrom,
    TokenizeFields,
    ToolCallFields,
)
from services.router.validation import (
    ChatPrompt,
    Generation,
    ModelLimits,
    RequestFields,
    Sampling,
    SamplingFields,
    TextPrompt,
    TokenPrompt,
)


def TEXTS(token_id):
    return f"t{token_id}".encode()


floats = st.floats(width=32, allow_nan=False)
ids = st.integers(0, 2**32 - 1)
sampled = st.one_of(
    st.builds(SampledToken, ids),
    st.builds(SampledToken, ids, floats, st.lists(st.tuples(ids, floats), max_size=3).map(tuple)),
)


@given(sampled)
def test_sampled_token(token):
    wire = messages.sampled_token_message(token).SerializeToString()
    assert messages.sampled_token(sampling_pb2.SampledToken.FromString(wire)) == token


@pytest.mark.parametrize("reason", list(FinishReason))
def test_finish_reason(reason):
    assert messages.finish_reason(messages.finish_reason_message(reason)) is reason


def test_unset_finish_reason_goes_on():
    assert messages.finish_reason(sampling_pb2.FINISH_REASON_UNSPECIFIED) is None


SAMPLING = {
    "temperature": 0.5,
    "top_k": 0,
    "top_p": 0.25,
    "min_p": 0.0,
    "seed": 2**64 - 1,
    "max_tokens": 7,
    "min_tokens": 2,
    "logprobs": 0,
    "repetition_penalty": 0.0,
    "presence_penalty": -0.5,
    "frequency_penalty": 0.0,
    "prompt_logprobs": 0,
}


def test_absent_fields_stay_absent_and_zeros_are_there():
    empty = messages.request_fields(inference_pb2.GenerateRequest())
    assert empty == RequestFields(None)
    full = inference_pb2.GenerateRequest(
        request_id="r",
        model="m",
        text="",
        sampling=sampling_pb2.SamplingParams(
            **SAMPLING,
            stop_token_ids=[4, 5],
            ignore_eos=True,
            logit_bias={9: 0.5, 3: -1.5},
            bad_sequences=[sampling_pb2.TokenSequence(token_ids=ids) for ids in ([], [1, 2])],
        ),
        stop=["a", "b"],
        n=3,
        echo=True,
        bad_words=["c", "d"],
        best_of=4,
    )
    wire = inference_pb2.GenerateRequest.FromString(full.SerializeToString())
    assert messages.request_fields(wire) == RequestFields(
        TextPrompt(""),
        "r",
        "m",
        SamplingFields(
            **SAMPLING,
            stop_token_ids=(4, 5),
            ignore_eos=True,
            logit_bias=((3, -1.5), (9, 0.5)),
            bad_sequences=((), (1, 2)),
        ),
        ("a", "b"),
        choices=3,
        echo=True,
        bad_words=("c", "d"),
        best_of=4,
    )


def test_prompts():
    call = inference_pb2.ToolCall(id="1", name="f", arguments_json="{}")
    chat = inference_pb2.ChatMessages(
        messages=[
            inference_pb2.ChatMessage(role="user", content="hi", name="me"),
            inference_pb2.ChatMessage(role="assistant", tool_calls=[call]),
            inference_pb2.ChatMessage(role="tool", content="4", tool_call_id="1"),
        ],
        tools_json=["a", "b"],
        template_variables_json="c",
    )
    request = inference_pb2.GenerateRequest
    said = (
        MessageFields("user", "hi", "me"),
        MessageFields("assistant", "", "", (ToolCallFields("1", "f", "{}"),)),
        MessageFields("tool", "4", "", (), "1"),
    )
    assert messages.request_fields(request(chat=chat)).prompt == ChatPrompt(said, ("a", "b"), "c")
    tokens = inference_pb2.TokenIds(ids=[1, 2])
    assert messages.request_fields(request(token_ids=tokens)).prompt == TokenPrompt((1, 2))


def test_questions_for_tokens():
    request = inference_pb2.TokenizeRequest
    assert messages.tokenize_fields(request()) == TokenizeFields(None)
    asked = messages.tokenize_fields(request(model="m", text="", without_special_tokens=True))
    assert asked == TokenizeFields(TextPrompt(""), "m", special_tokens=False)
    chat = inference_pb2.ChatMessages(tools_json=["a"])
    assert messages.tokenize_fields(request(chat=chat)).prompt == ChatPrompt((), ("a",))


@pytest.mark.parametrize("logprobs", [None, 0, 3])
def test_sampling_leaves_nothing_to_the_workers_defaults(logprobs):
    sampling = Sampling(0.5, 0, 0.25, 0.0, 0, 0, (4, 5), True, logprobs)
    generation = Generation(RequestId("r"), (1,), sampling, 9, ())
    sent = messages.sampling_message(generation)
    wire = sampling_pb2.SamplingParams.FromString(sent.SerializeToString())
    for field in SAMPLING.keys() - {"logprobs", "prompt_logprobs"}:
        assert wire.HasField(field)
    assert (wire.repetition_penalty, wire.presence_penalty, wire.frequency_penalty) == (1, 0, 0)
    assert not wire.HasField("prompt_logprobs")
    assert wire.HasField("logprobs") == (logprobs is not None)
    assert (wire.temperature, wire.top_k, wire.top_p, wire.min_p) == (0.5, 0, 0.25, 0.0)
    assert (wire.seed, wire.max_tokens, wire.min_tokens) == (0, 9, 0)
    assert (list(wire.stop_token_ids), wire.ignore_eos) == ([4, 5], True)


@pytest.mark.parametrize("wants_prompt", [False, True])
def test_sampling_with_everything(wants_prompt):
    sampling = Sampling(
        0.5, 0, 0.25, 0.0, 0, 0, (), True, None, 1.5, -0.5, 0.25, ((3, -1.5),), ((1, 2),), 4
    )
    generation = Generation(RequestId("r"), (1,), sampling, 9, ())
    sent = messages.sampling_message(generation, wants_prompt=wants_prompt)
    wire = sampling_pb2.SamplingParams.FromString(sent.SerializeToString())
    penalties = (wire.repetition_penalty, wire.presence_penalty, wire.frequency_penalty)
    assert penalties == (1.5, -0.5, 0.25)
    assert dict(wire.logit_bias) == {3: -1.5}
    assert [list(one.token_ids) for one in wire.bad_sequences] == [[1, 2]]
    assert wire.HasField("prompt_logprobs") == wants_prompt
    assert wire.prompt_logprobs == (4 if wants_prompt else 0)


def test_prompt():
    tokens = (SampledToken(1), SampledToken(2, -0.5, ((3, -0.25),)))
    event = PromptShown("héllo", tokens, has_logprobs=True)
    wire = inference_pb2.GenerateResponse.FromString(
        messages.response(event, TEXTS).SerializeToString()
    ).prompt
    assert wire.text == "héllo"
    assert tuple(map(messages.sampled_token, wire.tokens)) == event.tokens
    assert [token.text for token in wire.tokens] == [b"t1", b"t2"]
    assert wire.tokens[1].top_logprobs[0].text == b"t3"


def test_tokens_have_no_texts_where_log_probabilities_were_not_asked_for():
    def refused(token_id):
        raise AssertionError(token_id)

    tokens = (SampledToken(1), SampledToken(2))
    messages.response(PromptShown("ab", tokens), refused)
    messages.response(Delta("ab", tokens), refused)


def test_delta():
    tokens = (SampledToken(1, -0.5, ((1, -0.5), (2, -1.5))), SampledToken(2))
    event = Delta("héllo", tokens, choice=3)
    wire = inference_pb2.GenerateResponse.FromString(
        messages.response(event, TEXTS).SerializeToString()
    ).delta
    assert (wire.text, wire.choice) == ("héllo", 3)
    assert tuple(map(messages.sampled_token, wire.tokens)) == event.tokens
    assert [token.text for token in wire.tokens] == [b"t1", b""]
    assert [entry.text for entry in wire.tokens[0].top_logprobs] == [b"t1", b"t2"]


@pytest.mark.parametrize(("gap", "stop"), [(None, None), (0.0, ""), (0.25, "stop")])
def test_completed(gap, stop):
    timings = Timings(0.5, 0.25, 0.75, gap, 3.000000001, WorkerId("p"), None, 2, 0)
    choices = (
        CompletedChoice(0, FinishReason.LENGTH, stop, 3, WorkerId("d")),
        CompletedChoice(1, FinishReason.STOP, None, 1, None),
    )
    event = Completed(choices, TokenUsage(5, 4, 3), timings, RequestId("r"), 2**64 - 1)
    wire = inference_pb2.GenerateResponse.FromString(
        messages.response(event, TEXTS).SerializeToString()
    ).completed
    first, second = wire.choices
    assert first.finish_reason == sampling_pb2.FINISH_REASON_LENGTH
    assert (first.stop_string if first.HasField("stop_string") else None) == stop
    assert (first.index, first.completion_tokens, first.decode_worker) == (0, 3, "d")
    assert second.finish_reason == sampling_pb2.FINISH_REASON_STOP
    assert (second.index, second.completion_tokens, second.decode_worker) == (1, 1, "")
    usage = wire.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (5, 4, 3)
    assert wire.timings.queue.ToMilliseconds() == 500
    assert wire.timings.prefill.ToMilliseconds() == 250
    assert wire.timings.time_to_first_token.ToMilliseconds() == 750
    assert wire.timings.HasField("handoff_gap") == (gap is not None)
    assert wire.timings.total.ToNanoseconds() == 3_000_000_001
    assert (wire.timings.prefill_worker, wire.timings.decode_worker) == ("p", "")
    assert (wire.timings.prefill_attempts, wire.timings.decode_attempts) == (2, 0)
    assert (wire.request_id, wire.seed) == ("r", 2**64 - 1)


def test_model():
    limits = ModelLimits("m", 100, 50, 16, 1000)
    defaults = SamplingDefaults(temperature=0.0, top_p=0.5)
    targets = ClassTargets(0.5, 0.125, 60.0, 2.0)
    served = ServedModel(limits, frozenset({7, 3}), False, defaults, targets, ToolFormat.LLAMA)
    wire = messages.model_response(served)
    assert (wire.model.name, wire.model.vocab_size, wire.model.context_tokens) == ("m", 100, 50)
    assert list(wire.model.eos_token_ids) == [3, 7]
    assert (wire.has_chat_template, wire.default_max_tokens) == (False, 16)
    assert wire.tool_format == inference_pb2.TOOL_FORMAT_LLAMA
    assert wire.default_sampling == sampling_pb2.SamplingParams(temperature=0.0, top_p=0.5)
    for told, expected in (
        (wire.interactive_targets.ttft, 0.5),
        (wire.interactive_targets.itl, 0.125),
        (wire.batch_targets.ttft, 60.0),
        (wire.batch_targets.itl, 2.0),
    ):
        assert seconds(told) == expected


def test_admitted():
    wire = inference_pb2.GenerateResponse.FromString(
        messages.response(Admitted(RequestId("r"), 2**64 - 1, 0.25), TEXTS).SerializeToString()
    ).accepted
    assert (wire.request_id, wire.seed) == ("r", 2**64 - 1)
    assert seconds(wire.predicted_ttft) == 0.25


def test_fields_for_the_scheduler():
    request = inference_pb2.GenerateRequest
    for wire, batch in ((0, False), (1, False), (2, True), (3, None)):
        assert messages.request_fields(request(request_class=wire)).batch is batch
    full = request(
        ttft_target=to_duration(0.0), itl_target=to_duration(0.25), priority=-11,
        tenant="t",
    )  # fmt: skip
    fields = messages.request_fields(request.FromString(full.SerializeToString()))
    assert (fields.ttft_target_s, fields.itl_target_s) == (0.0, 0.25), "0 is not absent"
    assert (fields.priority, fields.tenant, fields.resume_from) == (-11, "t", None)


def test_resume_from():
    emitted = [inference_pb2.TokenIds(ids=ids) for ids in ([1, 2], [])]
    resume = inference_pb2.ResumeFrom(seed=2**64 - 1, emitted=emitted)
    fields = messages.request_fields(inference_pb2.GenerateRequest(resume_from=resume))
    assert fields.resume_from == ResumeFrom(2**64 - 1, ((1, 2), ()))
    empty = inference_pb2.GenerateRequest(resume_from=inference_pb2.ResumeFrom())
    assert messages.request_fields(empty).resume_from == ResumeFrom(0, ())


def test_what_was_predicted_and_moves():
    timings = Timings(0.5, 0.25, 0.75, None, 3.0, None, None, 2, 0, 0.5, 0.125, 3)
    completed = Completed((), TokenUsage(5, 4, 3), timings, RequestId("r"), 1)
    wire = messages.response(completed, TEXTS).completed.timings
    assert seconds(wire.predicted_ttft) == 0.5
    assert seconds(wire.predicted_itl) == 0.125
    assert wire.migrations == 3
