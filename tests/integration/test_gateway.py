"""The gateway over a real fleet, as OpenAI's own client sees it."""

import asyncio
import json
import signal
import socket
import time

import httpx2
import openai
import pytest

from tests.support.cluster import Cluster

SOON = 10.0
GRACE = 30.0


@pytest.fixture(scope="module")
def running(model, tmp_path_factory):
    with Cluster(
        model,
        run_dir=tmp_path_factory.mktemp("gateway"),
        routers=2,
        gateway=True,
        aggregated=True,
        grace=GRACE,
    ) as found:
        yield found


@pytest.fixture
def gateway(running):
    """The cluster; must be left clean."""
    yield running
    running.assert_clean()


@pytest.fixture
def client(gateway):
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as found:
        yield found


@pytest.fixture
def name(client):
    (model,) = client.models.list()
    return model.id


def test_completions_are_those_of_the_router(gateway, client, name):
    expected = gateway.client.complete("Once upon", max_tokens=12, seed=4)
    answer = client.completions.create(
        model=name, prompt="Once upon", max_tokens=12, seed=4, logprobs=2
    )
    (choice,) = answer.choices
    assert choice.text == expected.text
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 12
    assert len(choice.logprobs.tokens) == 12
    assert all(len(top) in (2, 3) for top in choice.logprobs.top_logprobs)
    stream = client.completions.create(
        model=name, prompt="Once upon", max_tokens=12, seed=4, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    assert "".join(one.choices[0].text for one in chunks if one.choices) == expected.text
    assert chunks[-1].usage.completion_tokens == 12


def test_a_prompt_is_scored(client, name):
    answer = client.completions.create(
        model=name, prompt="Once upon a time", max_tokens=0, echo=True, logprobs=1
    )
    (choice,) = answer.choices
    assert choice.text == "Once upon a time"
    assert answer.usage.completion_tokens == 0
    logprobs = choice.logprobs
    assert len(logprobs.tokens) == answer.usage.prompt_tokens
    assert logprobs.token_logprobs[0] is None
    assert all(value < 0 for value in logprobs.token_logprobs[1:])
    for token, offset in list(zip(logprobs.tokens, logprobs.text_offset, strict=True))[1:]:
        assert choice.text.startswith(token, offset)


def test_chat(client, name):
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
    ]
    answer = client.chat.completions.create(
        model=name, messages=messages, max_completion_tokens=8, n=2, seed=3, logprobs=True,
        top_logprobs=2,
    )  # fmt: skip
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].message.content != answer.choices[1].message.content
    first = answer.choices[0].logprobs.content[0]
    assert len(first.top_logprobs) == 2
    assert bytes(first.bytes).decode(errors="replace")
    chunks = list(
        client.chat.completions.create(
            model=name,
            messages=messages,
            max_completion_tokens=8,
            n=2,
            seed=3,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    for choice in answer.choices:
        parts = [one for chunk in chunks for one in chunk.choices if one.index == choice.index]
        assert parts[0].delta.role == "assistant"
        assert "".join(one.delta.content or "" for one in parts) == choice.message.content
        reasons = [one.finish_reason for one in parts if one.finish_reason]
        assert reasons == [choice.finish_reason]
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens


async def test_many_at_once(gateway, name):
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client:

        async def text(seed):
            stream = await client.chat.completions.create(
                model=name, messages=[{"role": "user", "content": "Hi"}], max_tokens=6, seed=seed,
                stream=True,
            )  # fmt: skip
            return "".join([part.choices[0].delta.content or "" async for part in stream])

        texts = await asyncio.gather(*(text(seed % 2) for seed in range(8)))
    assert len(set(texts)) == 2


def test_errors_by_their_class(client, name):
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="nobody", prompt="a")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model=name, prompt="a", max_tokens=100_000)
    assert bad.value.param == "max_tokens"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=name, messages=[{"role": "user", "content": ""}] * 600)
    assert bad.value.param == "messages"
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model=name, prompt="a", extra_body={"top_k": 100_000})
    assert bad.value.param == "top_k"


def test_tokens_and_back(gateway):
    text = "Once upon a time"
    answer = httpx2.post(
        f"{gateway.url}/v1/tokenize", json={"prompt": text, "return_token_strs": True}
    )
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["count"] == len(body["tokens"]) == len(body["token_strs"]) > 3
    back = httpx2.post(f"{gateway.url}/v1/detokenize", json={"tokens": body["tokens"]})
    assert back.json() == {"prompt": text}


def open_request(gateway, body):
    """A connection that has asked for a generation."""
    host, _, port = gateway.url.removeprefix("http://").rpartition(":")
    connection = socket.create_connection((host, int(port)))
    connection.settimeout(SOON)
    text = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {len(text)}\r\n"
    connection.sendall(head.encode() + b"content-type: application/json\r\n\r\n" + text)
    return connection


def running_requests(gateway):
    return sum(fleet.router.running_requests for fleet in gateway.fleets())


def wait_until(condition):
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnect_ends_the_generation_within_a_second(gateway, stream):
    body = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": stream, "n": 8}
    connection = open_request(gateway, body)
    if stream:
        assert connection.recv(64).startswith(b"HTTP/1.1 200")
    else:
        wait_until(lambda: running_requests(gateway))
    connection.close()
    gateway.wait_idle(1.0)


def test_a_stream_goes_on_when_its_router_dies(running, client, name):
    arguments = {
        "model": name, "prompt": "Once upon a time", "max_tokens": 200, "seed": 5, "n": 2,
        "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    expected = client.completions.create(**arguments)
    stream = iter(client.completions.create(**arguments, stream=True))
    chunks = [next(stream) for _ in range(4)]
    (busy,) = [
        name
        for name, one in running.clients.items()
        if one.fleet(timeout=SOON).router.running_requests
    ]
    running.kill(busy)
    chunks += list(stream)
    running.start(busy)
    running.wait_ready(60.0)
    for choice in expected.choices:
        parts = [part for chunk in chunks for part in chunk.choices if part.index == choice.index]
        assert "".join(part.text for part in parts) == choice.text
        assert parts[-1].finish_reason == "length"


def test_sigterm_lets_streams_end(running):
    """The last test: it leaves no gateway."""
    body = {"prompt": "Once upon", "max_tokens": 450, "n": 8, "stream": True, "ignore_eos": True}
    child = running.supervisor.child("gateway")
    with (
        httpx2.Client(base_url=running.url, timeout=GRACE) as http,
        http.stream("POST", "/v1/completions", json=body) as stream,
    ):
        assert http.get("/ready").status_code == 200
        lines = (line for line in stream.iter_lines() if line)
        first = next(lines)
        child.signal(signal.SIGTERM)
        wait_until(lambda: http.get("/ready").status_code == 503)
        refused = http.post("/v1/completions", json={"prompt": "a"})
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        lines = [first, *lines]
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert child.wait(SOON)
    assert child.exit_code() == 0
