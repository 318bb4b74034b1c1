"""/v1/completions: what reaches the router, and what comes back."""

import pytest

from baton import errors
from baton.v1 import inference_pb2, sampling_pb2
from tests.support.fake_router import accepted, completed, delta, ended, two_tokens
from tests.support.sse import events_of

PATH = "/v1/completions"


def sampled(token_id, text, logprob=-0.5, top=()):
    return sampling_pb2.SampledToken(
        token_id=token_id,
        logprob=logprob,
        text=text,
        top_logprobs=[
            sampling_pb2.TokenLogprob(token_id=one, logprob=value, text=name)
            for one, value, name in top
        ],
    )


async def test_a_prompt_is_continued(http, router):
    answer = await http.post(PATH, json={"model": "tiny", "prompt": "hi"})
    assert answer.status_code == 200
    body = answer.json()
    assert body["object"] == "text_completion"
    assert body["model"] == "tiny"
    assert body["id"].startswith("cmpl-")
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"], choice["index"]) == ("Hello sea", "stop", 0)
    assert body["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    assert router.requests[0].text == "hi"
    assert body["baton"]["prefill_worker"] == "prefill-0"


async def test_every_parameter_reaches_the_router(http, router):
    body = {
        "model": "tiny", "prompt": [1, 2], "max_tokens": 9, "temperature": 0.5, "top_p": 0.75,
        "top_k": 3, "min_p": 0.25, "seed": -1, "n": 2, "best_of": 2, "stop": "x",
        "stop_token_ids": [4], "min_tokens": 1, "ignore_eos": True, "presence_penalty": 0.5,
        "frequency_penalty": 1.5, "repetition_penalty": 2, "logit_bias": {"7": -3},
        "bad_words": ["no"], "request_class": "batch", "ttft_target": 1.5, "itl_target": 0.5,
        "priority": -2, "user": "me", "logprobs": 2, "prompt_logprobs": 1, "suffix": "",
        "structured_outputs": {"regex": "a+"}, "metadata": {"a": "b"}, "store": False,
    }  # fmt: skip
    router.script = lambda request: iter([accepted(request), completed(request, ended(), ended(1))])
    answer = await http.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    (request,) = router.requests
    sampling = request.sampling
    assert list(request.token_ids.ids) == [1, 2]
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (9, 0.5, 0.75)
    assert (sampling.top_k, sampling.min_p, sampling.seed) == (3, 0.25, 2**64 - 1)
    assert (request.n, list(request.stop), list(sampling.stop_token_ids)) == (2, ["x"], [4])
    assert (sampling.min_tokens, sampling.ignore_eos) == (1, True)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, 1.5)
    assert sampling.repetition_penalty == 2
    assert dict(sampling.logit_bias) == {7: -3}
    assert list(request.bad_words) == ["no"]
    assert request.request_class == inference_pb2.REQUEST_CLASS_BATCH
    assert (request.ttft_target.ToMilliseconds(), request.itl_target.ToMilliseconds()) == (
        1500,
        500,
    )
    assert request.priority == -2
    assert (sampling.logprobs, sampling.prompt_logprobs) == (2, 1)
    assert sampling.constraint.regex == "a+"


async def test_what_is_not_given_is_left_to_the_router(http, router):
    await http.post(PATH, json={"prompt": "hi", "temperature": None, "stop": None, "top_k": -1})
    (request,) = router.requests
    sampling = request.sampling
    assert not any(
        sampling.HasField(name)
        for name in ("temperature", "max_tokens", "seed", "logprobs", "constraint")
    )
    assert sampling.top_k == 0
    assert request.model == "tiny" or request.model == ""


@pytest.mark.parametrize(
    ("wanted", "kind", "value"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", True),
        (
            {"response_format": {
                "type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "string"}},
            }},
            "json_schema", '{"type":"string"}',
        ),
        ({"structured_outputs": {"json": {"b": 1, "a": 2}}}, "json_schema", '{"b":1,"a":2}'),
        ({"structured_outputs": {"json": "{}"}}, "json_schema", "{}"),
        ({"structured_outputs": {"grammar": "start: a"}}, "grammar", "start: a"),
        ({"guided_json": {"type": "null"}}, "json_schema", '{"type":"null"}'),
        ({"guided_regex": "b"}, "regex", "b"),
    ],
)  # fmt: skip
async def test_structured_outputs(http, router, wanted, kind, value):
    assert (await http.post(PATH, json={"prompt": "hi", **wanted})).status_code == 200
    constraint = router.requests[0].sampling.constraint
    assert constraint.WhichOneof("kind") == kind
    assert getattr(constraint, kind) == value


async def test_several_prompts_are_numbered_prompt_by_prompt(http, router):
    def script(request):
        yield accepted(request)
        for choice in (1, 0):
            yield delta(f"{request.text}{choice}", 7, choice=choice)
        yield completed(request, ended(), ended(1))

    router.script = script
    answer = await http.post(PATH, json={"prompt": ["a", "b"], "n": 2})
    body = answer.json()
    assert [(one["index"], one["text"]) for one in body["choices"]] == [
        (0, "a0"), (1, "a1"), (2, "b0"), (3, "b1"),
    ]  # fmt: skip
    assert body["usage"]["prompt_tokens"] == 10
    assert len({request.request_id for request in router.requests}) == 2
    streamed = await http.post(PATH, json={"prompt": ["a", "b"], "n": 2, "stream": True})
    texts = {}
    for event in events_of(streamed):
        for choice in event["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert texts == {0: "a0", 1: "a1", 2: "b0", 3: "b1"}


async def test_logprobs_have_the_place_of_each_token(http, router):
    def script(request):
        yield accepted(request)
        prompt = [
            sampling_pb2.SampledToken(token_id=2, text=b"<bos>"),
            sampled(5, "é".encode()[:1]),
        ]
        prompt += [sampled(6, "é".encode()[1:]), sampled(9, b"b")]
        yield inference_pb2.GenerateResponse(
            prompt=inference_pb2.GeneratePrompt(text="éb", tokens=prompt)
        )
        yield delta("Hi", sampled(7, b"H", top=[(8, -0.25, b"J")]), sampled(9, b"i", float("-inf")))
        yield completed(request)

    router.script = script
    body = {"prompt": "éb", "echo": True, "logprobs": 1}
    answer = (await http.post(PATH, json=body)).json()
    (choice,) = answer["choices"]
    assert choice["text"] == "ébHi"
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["<bos>", "bytes:\\xc3", "bytes:\\xa9", "b", "H", "i"]
    assert logprobs["token_logprobs"] == [None, -0.5, -0.5, -0.5, -0.5, -9999.0]
    assert logprobs["text_offset"] == [0, 0, 0, 1, 2, 3]
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["top_logprobs"][4] == {"H": -0.5, "J": -0.25}
    (request,) = router.requests
    assert (request.echo, request.sampling.logprobs, request.sampling.prompt_logprobs) == (
        True,
        1,
        1,
    )


async def test_a_prompt_is_scored_without_output(http, router):
    def script(request):
        yield accepted(request)
        yield inference_pb2.GenerateResponse(
            prompt=inference_pb2.GeneratePrompt(
                text="ab", tokens=[sampled(5, b"a"), sampled(6, b"b")]
            )
        )
        yield from list(two_tokens(request))[1:]

    router.script = script
    body = {"prompt": "ab", "echo": True, "logprobs": 0, "max_tokens": 0}
    answer = (await http.post(PATH, json=body)).json()
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "length")
    assert choice["logprobs"]["tokens"] == ["a", "b"]
    assert answer["usage"]["completion_tokens"] == 0
    assert router.requests[0].sampling.max_tokens == 1


async def test_a_stream_ends_with_the_reason_usage_and_done(http):
    body = {"prompt": "hi", "stream": True, "stream_options": {"include_usage": True}}
    events = events_of(await http.post(PATH, json=body))
    assert [event["choices"][0]["text"] for event in events[:-1]] == ["Hello", " sea", ""]
    assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None, None, "stop"]
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["total_tokens"] == 7
    assert events[-1]["baton"]["queue_s"] == 0.5
    assert len({event["id"] for event in events}) == 1
    plain = events_of(await http.post(PATH, json={"prompt": "hi", "stream": True}))
    assert all("usage" not in event for event in plain)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [[1], ["a"]]}, "prompt"),
        ({"prompt": ["a"] * 33}, "prompt"),
        ({"prompt": ["a"] * 17, "n": 2}, "prompt"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "max_tokens": "5"}, "max_tokens"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": "a", "n": 17}, "n"),
        ({"prompt": "a", "n": True}, "n"),
        ({"prompt": "a", "stop": [1]}, "stop"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt": "a", "surprise": 1}, "surprise"),
        ({"prompt": "a", "use_beam_search": True}, "use_beam_search"),
        ({"prompt": "a", "response_format": {"type": "yaml"}}, "response_format.type"),
        (
            {"prompt": "a", "response_format": {"type": "json_schema"}},
            "response_format.json_schema.schema",
        ),
        ({"prompt": "a", "guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"prompt": "a", "ttft_target": 0}, "ttft_target"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_bad_bodies_name_the_field(http, router, body, param, stream):
    if "stream_options" not in body:
        body = {**body, "stream": stream}
    answer = await http.post(PATH, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(param)
    assert error["type"] == "invalid_request_error"
    assert not router.requests


async def test_what_changes_nothing_is_accepted(http):
    body = {"prompt": "a", "use_beam_search": False, "skip_special_tokens": True, "surprise": None}
    assert (await http.post(PATH, json=body)).status_code == 200
    assert (await http.post(PATH, json={"prompt": "a", "max_tokens": 5.0})).status_code == 200


@pytest.mark.parametrize(
    ("field", "prompt", "param"),
    [
        ("text", "a", "prompt"),
        ("text", ["a", "b"], "prompt[1]"),
        ("token_ids.ids[3]", [[1], [2]], "prompt[1][3]"),
        ("sampling.top_k", "a", "top_k"),
        ("sampling.logit_bias[5]", "a", "logit_bias[5]"),
        ("stop[1]", "a", "stop[1]"),
    ],
)
async def test_routers_errors_name_the_bodys_field(http, router, field, prompt, param):
    def script(request):
        if request.request_id.endswith("-0"):
            yield from two_tokens(request)
            return
        raise errors.InvalidRequest(field, "is wrong")

    router.script = script
    extra = {"structured_outputs": {"regex": "a"}} if "constraint" in field else {}
    answer = await http.post(PATH, json={"prompt": prompt, **extra})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert answer.json()["error"]["message"] == f"{param}: is wrong"


@pytest.mark.parametrize(
    ("field", "body", "param"),
    [
        ("regex", {"structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        ("grammar", {"structured_outputs": {"grammar": "a"}}, "structured_outputs.grammar"),
        ("choice.texts", {"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ("choice.texts[1]", {"structured_outputs": {"choice": []}}, "structured_outputs.choice[1]"),
        ("json_schema", {"structured_outputs": {"json": {}}}, "structured_outputs.json"),
        ("json_schema", {"guided_json": {}}, "guided_json"),
        (
            "json_schema",
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.schema",
        ),
        ("json_object", {"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
async def test_errors_in_constraints_name_the_bodys_field(http, router, field, body, param):
    def script(request):
        raise errors.InvalidRequest(f"sampling.constraint.{field}", "is wrong")
        yield

    router.script = script
    error = (await http.post(PATH, json={"prompt": "a", **body})).json()["error"]
    assert error["param"] == param
    assert error["message"] == f"{param}: is wrong"
