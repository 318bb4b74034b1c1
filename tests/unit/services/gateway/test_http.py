"""What holds for every route: errors, ids, keys, sizes, and an end that waits."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from baton import errors
from tests.support.fake_router import accepted, delta, two_tokens
from tests.support.sse import events_of

COMPLETIONS = "/v1/completions"
HI = {"prompt": "hi"}
ERROR_KEYS = {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (errors.InvalidRequest("text", "no"), 400, "invalid_request_error"),
        (errors.Unauthenticated("no key"), 401, "authentication_error"),
        (errors.PermissionDenied("not yours"), 403, "permission_error"),
        (errors.NotFound("none", field="model"), 404, "invalid_request_error"),
        (errors.Exhausted("full", retry_after=0.2), 429, "rate_limit_error"),
        (errors.Exhausted("full", retry_after=2.5), 429, "rate_limit_error"),
        (errors.InternalError("oh"), 500, "server_error"),
        (errors.LostRace("oh"), 500, "server_error"),
        (errors.Unavailable("no worker", reason="NO_WORKER"), 503, "server_error"),
        (errors.DeadlineExceeded("late"), 504, "server_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_have_openais_shape(http, router, error, status, kind, stream):
    def script(request):
        raise error
        yield

    router.script = script
    answer = await http.post(COMPLETIONS, json={**HI, "stream": stream})
    assert answer.status_code == status
    told = answer.json()["error"]
    assert set(told) == ERROR_KEYS
    assert told["type"] == kind
    if status in (429, 503):
        assert answer.headers["retry-after"] == ("3" if error.retry_after == 2.5 else "1")
    assert ("www-authenticate" in answer.headers) == (status == 401)


async def test_an_error_amid_a_stream_is_its_last_event(http, router):
    def script(request):
        yield accepted(request)
        yield delta("Hello", 7)
        raise errors.Unavailable("the worker is gone", reason="NO_WORKER")

    router.script = script
    events = events_of(await http.post(COMPLETIONS, json={**HI, "stream": True}))
    assert events[0]["choices"][0]["text"] == "Hello"
    assert events[-1]["error"]["message"] == "the worker is gone"
    assert len(events) == 2


async def test_what_is_not_there(http):
    for method, path, status in (
        ("GET", "/v1/nothing", 404),
        ("GET", COMPLETIONS, 405),
        ("POST", "/v1/models", 405),
        ("GET", "/v1/models/other", 404),
    ):
        answer = await http.request(method, path)
        assert answer.status_code == status
        assert set(answer.json()["error"]) == ERROR_KEYS


async def test_models(http):
    listed = (await http.get("/v1/models")).json()
    assert listed["object"] == "list"
    (model,) = listed["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("tiny", "model", 512)
    assert (await http.get("/v1/models/tiny")).json() == model


async def test_what_one_key_was_told_is_not_told_to_others(http, router):
    assert (await http.get("/v1/models", headers={"authorization": "Bearer known"})).is_success
    router.model_error = errors.Unauthenticated("a valid API key is needed")
    for others in ({}, {"authorization": "Bearer other"}):
        assert (await http.get("/v1/models", headers=others)).status_code == 401
        assert (await http.post(COMPLETIONS, json=HI, headers=others)).status_code == 401
    assert (await http.get("/v1/models", headers={"authorization": "Bearer known"})).is_success


async def test_a_router_that_stops_in_the_middle_is_no_client_that_went_away(http, router):
    router.model_error = errors.Cancelled("the router stopped")
    answer = await http.get("/v1/models")
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1", "nope", '{"prompt": "\\ud800"}', "[" * 100_00, '{"a":' * 5000, "1" * 5000],
)
async def test_what_is_no_json(http, text):
    answer = await http.post(
        COMPLETIONS, content=text, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == ERROR_KEYS


@pytest.mark.parametrize("text", ["[]", "null", "3", '"a"', '{"prompt": "a", "temperature": NaN}'])
async def test_json_of_another_shape(http, text):
    answer = await http.post(COMPLETIONS, content=text)
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == ERROR_KEYS


async def test_other_media_types(http):
    form = {"content-type": "application/x-www-form-urlencoded"}
    answer = await http.post(COMPLETIONS, content=json.dumps(HI), headers=form)
    assert answer.status_code == 415
    charset = {"content-type": "application/json; charset=utf-8"}
    assert (await http.post(COMPLETIONS, content=json.dumps(HI), headers=charset)).is_success


async def test_bodies_have_a_size(http, router):
    async def chunks():
        for _ in range(20):
            yield b" " * 8192

    for content in (b" " * 70_000, chunks()):
        answer = await http.post(COMPLETIONS, content=content)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "body_too_large"
    assert not router.requests


async def test_the_clients_id_is_kept_and_the_generations_is_unique(http, router):
    for _ in range(2):
        answer = await http.post(COMPLETIONS, json=HI, headers={"x-request-id": "mine-1"})
        assert answer.headers["x-request-id"] == "mine-1"
    ids = [request.request_id for request in router.requests]
    assert len(set(ids)) == 2
    assert all(one.startswith("mine-1.") for one in ids)
    assert answer.headers["x-baton-request-id"] == ids[1]
    bad = await http.post(COMPLETIONS, json=HI, headers={"x-request-id": "a b" * 200})
    assert bad.headers["x-request-id"] == router.requests[-1].request_id


async def test_a_callers_trace_goes_on_and_nothing_else_that_it_says_does(http, router):
    parent = f"00-{'ab' * 16}-{'cd' * 8}-01"
    for state, told in (("a=1", "a=1"), ("a=" + "x" * 600, None), ("k=1," * 9000, None)):
        headers = {"traceparent": parent, "tracestate": state, "baggage": "b=1"}
        answer = await http.post(COMPLETIONS, json=HI, headers=headers)
        assert answer.status_code == 200
        metadata = router.metadata[-1]
        assert metadata["traceparent"][:35] == parent[:35]
        assert metadata.get("tracestate") == told
        assert "baggage" not in metadata
    for nonsense in ("x", parent + "x" * 5000, f"00-{'0' * 32}-{'0' * 16}-01"):
        answer = await http.post(COMPLETIONS, json=HI, headers={"traceparent": nonsense})
        assert answer.status_code == 200
        assert "traceparent" not in router.metadata[-1]


async def test_the_key_is_passed_on(http, router):
    await http.post(COMPLETIONS, json=HI, headers={"authorization": "Bearer k"})
    assert router.metadata[-1]["authorization"] == "Bearer k"
    await http.post(COMPLETIONS, json=HI)
    assert "authorization" not in router.metadata[-1]
    for nonsense in (b"Bearer \xff", b"Bearer " + b"k" * 8000):  # more than gRPC lets through
        bad = await http.post(COMPLETIONS, json=HI, headers={"authorization": nonsense})
        assert bad.status_code == 401


async def test_tokens_and_back(http, router):
    answer = await http.post("/v1/tokenize", json={"prompt": "hi", "return_token_strs": True})
    assert answer.json() == {
        "count": 2, "max_model_len": 512, "tokens": [104, 105], "token_strs": ["h", "i"],
    }  # fmt: skip
    messages = [{"role": "user", "content": "a"}]
    chat = {"messages": messages, "add_special_tokens": False}
    assert (await http.post("/v1/tokenize", json=chat)).status_code == 200
    assert router.tokenized[1].chat.messages[0].content == "a"
    assert router.tokenized[1].without_special_tokens
    assert (await http.post("/v1/detokenize", json={"tokens": [104]})).json() == {"prompt": "h"}
    unknown = await http.post("/v1/detokenize", json={"tokens": [300]})
    assert unknown.status_code == 400
    assert unknown.json()["error"]["param"] == "tokens[0]"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("tokenize", {}, "prompt"),
        ("tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("tokenize", {"prompt": 5}, "prompt"),
        ("detokenize", {}, "tokens"),
        ("detokenize", {"tokens": [-1]}, "tokens[0]"),
    ],
)
async def test_wrong_shapes_of_token_routes_are_422(http, path, body, param):
    answer = await http.post(f"/v1/{path}", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == param


async def test_health_and_readiness(http, router, gate):
    assert (await http.get("/health")).status_code == 200
    assert (await http.get("/ready")).status_code == 200
    router.model_error = errors.Unauthenticated("no key")
    assert (await http.get("/ready")).status_code == 200
    router.model_error = errors.Unavailable("no worker", reason="NO_WORKER")
    assert (await http.get("/ready")).status_code == 503
    router.model_error = None
    assert await gate.close(1.0)
    stopping = await http.get("/ready")
    assert (stopping.status_code, stopping.headers["retry-after"]) == (503, "1")
    assert (await http.get("/health")).status_code == 200
    assert (await http.head("/health")).status_code == 200
    assert (await http.head("/ready")).status_code == 503
    refused = await http.post(COMPLETIONS, json=HI)
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"


async def test_closing_waits_for_what_runs(http, router, gate):
    go_on = asyncio.Event()
    loop = asyncio.get_running_loop()

    def script(request):
        yield accepted(request)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(10)
        yield from list(two_tokens(request))[1:]

    router.script = script
    answer = asyncio.create_task(http.post(COMPLETIONS, json=HI))
    while not gate.inside:
        await asyncio.sleep(0)
    assert not await gate.close(0.01)
    closing = asyncio.create_task(gate.close(10.0))
    go_on.set()
    assert await closing
    assert (await answer).status_code == 200


@pytest.mark.parametrize(
    "body",
    re.findall(r"v1/completions [^']*'[^']*' -d '(.*?)'", Path("README.md").read_text(), re.DOTALL),
)
async def test_what_the_readme_sends_is_answered(http, body):
    headers = {"content-type": "application/json"}
    answer = await http.post(COMPLETIONS, content=body, headers=headers)
    assert answer.status_code == 200, answer.text
