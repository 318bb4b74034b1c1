"""/v1/chat/completions: what reaches the router, and what comes back."""

import json

import pytest

from baton import errors
from baton.v1 import inference_pb2, sampling_pb2
from tests.support.fake_router import accepted, completed, delta, ended
from tests.support.sse import events_of

PATH = "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]


async def test_the_assistant_answers(http, router):
    answer = await http.post(PATH, json={"messages": USER})
    body = answer.json()
    assert body["object"] == "chat.completion"
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello sea", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None
    assert body["usage"]["total_tokens"] == 7


async def test_answers_are_explained(http, router):
    router.trailing = [("baton-explanation", "waited 1 ms")]
    answer = await http.post(PATH, json={"messages": USER})
    assert answer.headers["x-baton-explanation"] == "waited 1 ms"


async def test_conversations_reach_the_router(http, router):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "name": "ann", "content": [
            {"type": "text", "text": "a"}, {"type": "text", "text": "b"},
        ]},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "content": "4", "tool_call_id": "c1"},
    ]  # fmt: skip
    body = {
        "messages": messages, "tools": [tool],
        "chat_template_kwargs": {"thinking": False}, "max_tokens": 3,
    }  # fmt: skip
    router.tool_format = inference_pb2.TOOL_FORMAT_HERMES
    assert (await http.post(PATH, json=body)).status_code == 200
    chat = router.requests[0].chat
    assert [(one.role, one.content) for one in chat.messages] == [
        ("system", "Be brief."), ("user", "a\nb"), ("assistant", ""), ("tool", "4"),
    ]  # fmt: skip
    assert chat.messages[1].name == "ann"
    (sent,) = chat.messages[2].tool_calls
    assert (sent.id, sent.name, sent.arguments_json) == ("c1", "f", "{}")
    assert chat.messages[3].tool_call_id == "c1"
    assert [json.loads(text) for text in chat.tools_json] == [tool]
    assert json.loads(chat.template_variables_json) == {"thinking": False}
    assert router.requests[0].sampling.max_tokens == 3


async def test_streams_begin_with_the_role_of_each_choice(http, router):
    def script(request):
        yield accepted(request)
        yield delta("b", 7, choice=1)
        yield delta("a", 7, choice=0)
        yield delta("", 8, choice=0)
        yield completed(request, ended(), ended(1, finish_reason=sampling_pb2.FINISH_REASON_LENGTH))

    router.script = script
    body = {"messages": USER, "n": 2, "stream": True, "stream_options": {"include_usage": True}}
    events = events_of(await http.post(PATH, json=body))
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    last = events.pop()
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 2
    for index, text, reason in ((0, "a", "stop"), (1, "b", "length")):
        parts = [c for event in events for c in event["choices"] if c["index"] == index]
        assert parts[0]["delta"] == {"role": "assistant", "content": ""}
        assert [part["delta"].get("content") for part in parts[1:-1]] == [text]
        assert (parts[-1]["delta"], parts[-1]["finish_reason"]) == ({}, reason)
        assert all(part["finish_reason"] is None for part in parts[:-1])


async def test_logprobs(http, router):
    def script(request):
        yield accepted(request)
        token = sampling_pb2.SampledToken(
            token_id=7, logprob=-0.5, text="é".encode(),
            top_logprobs=[sampling_pb2.TokenLogprob(token_id=8, logprob=-0.25, text=b"\xc3")],
        )  # fmt: skip
        yield delta("é", token)
        yield completed(request)

    router.script = script
    body = {"messages": USER, "logprobs": True, "top_logprobs": 1}
    (choice,) = (await http.post(PATH, json=body)).json()["choices"]
    assert choice["logprobs"]["content"] == [
        {
            "token": "é", "logprob": -0.5, "bytes": [0xC3, 0xA9],
            "top_logprobs": [{"token": "bytes:\\xc3", "logprob": -0.25, "bytes": [0xC3]}],
        }
    ]  # fmt: skip
    assert router.requests[0].sampling.logprobs == 1
    streamed = events_of(await http.post(PATH, json={**body, "stream": True}))
    assert streamed[1]["choices"][0]["logprobs"] == choice["logprobs"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "bard", "content": "a"}]}, "messages[0].role"),
        ({"messages": [*USER, {"role": "user"}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [
                {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}},
            ]}]},
            "messages[0].content[1].type",
        ),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].tool_call_id"),
        (
            {"messages": [{"role": "user", "content": "a", "tool_calls": [
                {"id": "a", "function": {"name": "a", "arguments": "{}"}}]}]},
            "messages[0].tool_calls",
        ),
        ({"messages": [{"role": "user", "content": "a", "mood": 1}]}, "messages[0].mood"),
        ({"messages": USER, "top_logprobs": 3}, "top_logprobs"),
        ({"messages": USER, "max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"messages": USER, "functions": []}, "functions"),
        ({"messages": USER, "reasoning_effort": "low"}, "reasoning_effort"),
    ],
)  # fmt: skip
async def test_bad_bodies_name_the_field(http, router, body, param):
    answer = await http.post(PATH, json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert not router.requests


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ("chat", "messages"),
        ("chat.messages[0].role", "messages[0].role"),
        (
            "chat.messages[0].tool_calls[1].arguments_json",
            "messages[0].tool_calls[1].function.arguments",
        ),
        ("chat.template_variables_json", "chat_template_kwargs"),
        ("sampling.max_tokens", "max_completion_tokens"),
        ("sampling.top_p", "top_p"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_routers_errors_name_the_bodys_field(http, router, field, param, stream):
    def script(request):
        raise errors.InvalidRequest(field, "is wrong")
        yield

    router.script = script
    answer = await http.post(PATH, json={"messages": USER, "stream": stream})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def says(*texts, reason=sampling_pb2.FINISH_REASON_STOP):
    def script(request):
        yield accepted(request)
        for text in texts:
            yield delta(text, 7)
        yield completed(request, ended(finish_reason=reason))

    return script


async def test_calls_of_tools(http, router):
    router.tool_format = inference_pb2.TOOL_FORMAT_HERMES
    router.script = says(
        "Well. <tool", '_call>{"name": "f", "argum', 'ents": {"a": 1}}</tool_call>'
    )
    body = {"messages": USER, "tools": [TOOL]}
    (choice,) = (await http.post(PATH, json=body)).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Well."
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert not router.requests[0].sampling.HasField("constraint")

    events = events_of(await http.post(PATH, json={**body, "stream": True}))
    parts = [event["choices"][0] for event in events]
    calls = [one for part in parts for one in part["delta"].get("tool_calls", ())]
    assert "".join(part["delta"].get("content") or "" for part in parts) == "Well."
    assert (calls[0]["index"], calls[0]["function"]["name"]) == (0, "f")
    assert calls[0]["id"]
    assert "".join(one["function"].get("arguments") or "" for one in calls) == '{"a": 1}'
    assert parts[-1]["finish_reason"] == "tool_calls"


async def test_a_call_that_was_cut_off_is_no_call_to_make(http, router):
    router.tool_format = inference_pb2.TOOL_FORMAT_HERMES
    router.script = says(
        '<tool_call>{"name": "f", "arguments": {"a', reason=sampling_pb2.FINISH_REASON_LENGTH
    )
    answer = await http.post(PATH, json={"messages": USER, "tools": [TOOL]})
    assert answer.json()["choices"][0]["finish_reason"] == "length"


async def test_a_call_can_be_forced(http, router):
    router.tool_format = inference_pb2.TOOL_FORMAT_HERMES
    body = {"messages": USER, "tools": [TOOL], "tool_choice": "required"}
    assert (await http.post(PATH, json=body)).status_code == 200
    assert router.requests[0].sampling.constraint.grammar


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "response_format"),
    ],
)
async def test_tools_that_can_never_work(http, router, body, param):
    router.tool_format = inference_pb2.TOOL_FORMAT_HERMES
    answer = await http.post(PATH, json={"messages": USER, **body})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_a_model_without_tools_says_so(http):
    answer = await http.post(PATH, json={"messages": USER, "tools": [TOOL]})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "tools"
    none = {"messages": USER, "tools": [TOOL], "tool_choice": "none"}
    assert (await http.post(PATH, json=none)).status_code == 200
