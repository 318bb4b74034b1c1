"""What reaches the wire, and what is refused before it."""

import numpy as np
import pytest

from baton import errors
from baton._checks import to_timeout
from baton._convert import to_request
from baton.constraints import Choice, Grammar, JsonObject, JsonSchema, Regex
from baton.events import ResumeFrom
from baton.prompts import Conversation, Message, ToolCall
from baton.v1 import inference_pb2


def test_nothing_given_means_nothing_set():
    request = to_request("hi", {"max_tokens": None, "stop": None, "timeout": 3.0})
    assert request.text == "hi"
    assert not any(
        request.sampling.HasField(name)
        for name in ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "logprobs")
    )
    assert not request.stop
    assert request.request_id == request.model == ""


def test_everything_given_arrives():
    request = to_request(
        "hi",
        {
            "max_tokens": 3, "min_tokens": 1, "temperature": 0, "top_k": 4, "top_p": 0.5,
            "min_p": 0.25, "seed": 2**64 - 1, "stop": ["a", "b"], "stop_token_ids": (7, 8),
            "ignore_eos": True, "logprobs": 0, "request_id": "r", "model": "m",
        },
    )  # fmt: skip
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.min_tokens, sampling.top_k) == (3, 1, 4)
    assert (sampling.temperature, sampling.top_p, sampling.min_p) == (0.0, 0.5, 0.25)
    assert sampling.HasField("temperature")
    assert sampling.HasField("logprobs")
    assert sampling.seed == 2**64 - 1
    assert list(sampling.stop_token_ids) == [7, 8]
    assert sampling.ignore_eos
    assert list(request.stop) == ["a", "b"]
    assert (request.request_id, request.model) == ("r", "m")


def test_what_shapes_the_output_arrives():
    request = to_request(
        "hi",
        {
            "n": 3, "best_of": 4, "echo": True, "bad_words": "no", "logit_bias": {7: -5, 8: 0.5},
            "bad_sequences": [[1, 2], (3,)], "prompt_logprobs": 0, "repetition_penalty": 1.5,
            "presence_penalty": -0.5, "frequency_penalty": 2,
        },
    )  # fmt: skip
    sampling = request.sampling
    assert (request.n, request.best_of, request.echo) == (3, 4, True)
    assert list(request.bad_words) == ["no"]
    assert dict(sampling.logit_bias) == {7: -5.0, 8: 0.5}
    assert [list(one.token_ids) for one in sampling.bad_sequences] == [[1, 2], [3]]
    assert sampling.HasField("prompt_logprobs")
    penalties = (
        sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty,
    )  # fmt: skip
    assert penalties == (1.5, -0.5, 2.0)


def test_what_is_asked_of_the_scheduler_arrives():
    request = to_request(
        "hi",
        {
            "request_class": "batch", "ttft_target": 0.5, "itl_target": 1, "priority": -10,
            "tenant": "t", "resume_from": ResumeFrom(2**64 - 1, ((1, 2), ())),
        },
    )  # fmt: skip
    assert request.request_class == inference_pb2.REQUEST_CLASS_BATCH
    assert request.ttft_target.ToMilliseconds() == 500
    assert request.itl_target.ToMilliseconds() == 1000
    assert (request.priority, request.tenant) == (-10, "t")
    assert request.resume_from.seed == 2**64 - 1
    assert [list(one.ids) for one in request.resume_from.emitted] == [[1, 2], []]
    nothing = to_request("hi", {"request_class": None, "ttft_target": None, "resume_from": None})
    for name in ("ttft_target", "itl_target", "resume_from"):
        assert not nothing.HasField(name)


def test_prompts():
    assert list(to_request([1, 2], {}).token_ids.ids) == [1, 2]
    assert list(to_request(np.array([1, 2]), {}).token_ids.ids) == [1, 2]
    assert to_request([], {}).WhichOneof("input") == "token_ids"
    assert to_request("", {}).WhichOneof("input") == "text"
    for message in (Message("user", "hi"), ("user", "hi"), {"role": "user", "content": "hi"}):
        chat = to_request([message], {}).chat
        assert (chat.messages[0].role, chat.messages[0].content) == ("user", "hi")


def test_one_stop_string_needs_no_list():
    assert list(to_request("hi", {"stop": "END"}).stop) == ["END"]


@pytest.mark.parametrize(
    ("prompt", "options", "argument"),
    [
        (5, {}, "prompt"),
        (None, {}, "prompt"),
        (b"hi", {}, "prompt"),
        ([1, "2"], {}, "prompt[1]"),
        ([1.5], {}, "prompt[0]"),
        ([True], {}, "prompt[0]"),
        ([{"role": "user"}], {}, "prompt[0]"),
        ([("user", "hi"), "no"], {}, "prompt[1]"),
        ([("user", 7)], {}, "prompt[0].content"),
        ("hi", {"max_tokens": "3"}, "max_tokens"),
        ("hi", {"max_tokens": 3.0}, "max_tokens"),
        ("hi", {"max_tokens": True}, "max_tokens"),
        ("hi", {"temperature": "hot"}, "temperature"),
        ("hi", {"ignore_eos": 1}, "ignore_eos"),
        ("hi", {"stop": [7]}, "stop[0]"),
        ("hi", {"stop": 7}, "stop"),
        ("hi", {"stop_token_ids": [1, None]}, "stop_token_ids[1]"),
        ("hi", {"request_id": 7}, "request_id"),
        ("hi", {"n": "2"}, "n"),
        ("hi", {"best_of": 2.0}, "best_of"),
        ("hi", {"echo": 1}, "echo"),
        ("hi", {"bad_words": ["a", 7]}, "bad_words[1]"),
        ("hi", {"bad_words": 7}, "bad_words"),
        ("hi", {"logit_bias": [7]}, "logit_bias"),
        ("hi", {"logit_bias": {"7": 1.0}}, "logit_bias['7']"),
        ("hi", {"logit_bias": {7: "much"}}, "logit_bias[7]"),
        ("hi", {"bad_sequences": [1]}, "bad_sequences[0]"),
        ("hi", {"bad_sequences": [None]}, "bad_sequences[0]"),
        ("hi", {"bad_sequences": [[1, "2"]]}, "bad_sequences[0][1]"),
        ("hi", {"repetition_penalty": "1"}, "repetition_penalty"),
        ("hi", {"prompt_logprobs": True}, "prompt_logprobs"),
        ("hi", {"max_new_tokens": 7}, "max_new_tokens"),
        ("hi", {"request_class": 1}, "request_class"),
        ("hi", {"ttft_target": "1"}, "ttft_target"),
        ("hi", {"itl_target": True}, "itl_target"),
        ("hi", {"priority": 1.5}, "priority"),
        ("hi", {"tenant": 7}, "tenant"),
        ("hi", {"resume_from": 7}, "resume_from"),
        ("hi", {"resume_from": ResumeFrom(7, ((1, "2"),))}, "resume_from.emitted[0][1]"),
    ],
)
def test_wrong_types_name_the_argument(prompt, options, argument):
    with pytest.raises(TypeError) as raised:
        to_request(prompt, options)
    named = str(raised.value)
    assert named.startswith((f"{argument}:", f"unknown argument '{argument}'"))


@pytest.mark.parametrize(
    ("prompt", "options", "field"),
    [
        ([1, -1], {}, "token_ids.ids[1]"),
        ([2**32], {}, "token_ids.ids[0]"),
        ("\ud800", {}, "text"),
        ([("user", "\ud800")], {}, "chat.messages[0].content"),
        ("hi", {"max_tokens": -1}, "sampling.max_tokens"),
        ("hi", {"top_k": 2**32}, "sampling.top_k"),
        ("hi", {"seed": 2**64}, "sampling.seed"),
        ("hi", {"stop_token_ids": [-5]}, "sampling.stop_token_ids[0]"),
        ("hi", {"stop": ["a", "\ud800"]}, "stop[1]"),
        ("hi", {"n": 0}, "n"),
        ("hi", {"n": -1}, "n"),
        ("hi", {"best_of": -1}, "best_of"),
        ("hi", {"bad_words": ["\ud800"]}, "bad_words[0]"),
        ("hi", {"logit_bias": {-1: 1.0}}, "sampling.logit_bias[-1]"),
        ("hi", {"bad_sequences": [[1], [-1]]}, "sampling.bad_sequences[1].token_ids[0]"),
        ("hi", {"prompt_logprobs": -1}, "sampling.prompt_logprobs"),
        ("hi", {"request_class": "urgent"}, "request_class"),
        ("hi", {"ttft_target": float("inf")}, "ttft_target"),
        ("hi", {"itl_target": float("nan")}, "itl_target"),
        ("hi", {"itl_target": 1e300}, "itl_target"),
        ("hi", {"priority": 2**31}, "priority"),
        ("hi", {"tenant": "\ud800"}, "tenant"),
        ("hi", {"resume_from": ResumeFrom(-1, ())}, "resume_from.seed"),
        ("hi", {"resume_from": ResumeFrom(1, ((), (-1,)))}, "resume_from.emitted[1].ids[0]"),
    ],
)
def test_what_the_wire_cannot_carry_names_the_field(prompt, options, field):
    with pytest.raises(errors.InvalidRequest) as raised:
        to_request(prompt, options)
    assert raised.value.field == field


def test_timeouts():
    assert to_timeout(None) is None
    assert to_timeout(2) == 2.0
    for wrong in ("2", True):
        with pytest.raises(TypeError, match="timeout"):
            to_timeout(wrong)


def test_conversations_with_tools_arrive():
    call = ToolCall("c1", "f", "{}")
    conversation = Conversation(
        [
            Message("user", "a", name="ann"),
            {"role": "assistant", "content": "", "tool_calls": [call]},
            Message("tool", "4", tool_call_id="c1"),
        ],
        tools_json=['{"type":"function"}'],
        template_variables={"thinking": False},
    )
    chat = to_request(conversation, {}).chat
    assert (chat.messages[0].role, chat.messages[0].name) == ("user", "ann")
    (sent,) = chat.messages[1].tool_calls
    assert (sent.id, sent.name, sent.arguments_json) == call
    assert chat.messages[2].tool_call_id == "c1"
    assert list(chat.tools_json) == ['{"type":"function"}']
    assert chat.template_variables_json == '{"thinking": false}'


@pytest.mark.parametrize(
    ("conversation", "argument"),
    [
        (Conversation([Message("user", "a", name=5)]), "prompt[0].name"),
        (Conversation([Message("a", "a", tool_calls=[1])]), "prompt[0].tool_calls[0]"),
        (
            Conversation([Message("a", "a", tool_calls=[ToolCall("a", "b", 1)])]),
            "prompt[0].tool_calls[0].arguments_json",
        ),
        (Conversation([], tools_json=[{}]), "tools_json[0]"),
        (Conversation([], template_variables=[1]), "template_variables"),
    ],
)
def test_wrong_conversations_name_the_argument(conversation, argument):
    with pytest.raises(TypeError) as raised:
        to_request(conversation, {})
    assert str(raised.value).startswith(f"{argument}:")


def test_template_variables_must_be_json():
    with pytest.raises(errors.InvalidRequest) as raised:
        to_request(Conversation([], template_variables={"a": float("nan")}), {})
    assert raised.value.field == "chat.template_variables_json"


@pytest.mark.parametrize(
    ("constraint", "kind", "value"),
    [
        (JsonSchema("{}"), "json_schema", "{}"),
        (JsonObject(), "json_object", True),
        (Regex("a+"), "regex", "a+"),
        (Grammar("start: a"), "grammar", "start: a"),
    ],
)
def test_constraints_arrive(constraint, kind, value):
    sent = to_request("hi", {"constraint": constraint}).sampling.constraint
    assert sent.WhichOneof("kind") == kind
    assert getattr(sent, kind) == value


def test_a_choice_arrives():
    sent = to_request("hi", {"constraint": Choice(("a", "b"))}).sampling.constraint
    assert list(sent.choice.texts) == ["a", "b"]
    with pytest.raises(TypeError, match="constraint:"):
        to_request("hi", {"constraint": {"regex": "a"}})
