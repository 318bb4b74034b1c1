"""Metrics of the gateway: a small app, asked through its own transport."""

import asyncio

import httpx2
import pytest
from fastapi import FastAPI
from starlette.responses import JSONResponse, StreamingResponse

from services.common.telemetry.metrics import Metrics
from services.gateway import metrics as told
from tests.support.scrape import OPENMETRICS, Scrape

TRACE = "0123456789abcdef" * 2


@pytest.fixture
def release():
    return asyncio.Event()


@pytest.fixture
async def app(release):
    app = FastAPI()

    @app.get("/things/{name}")
    async def thing(name: str):
        if name == "broken":
            raise RuntimeError("broken")
        if name == "traced":
            return JSONResponse({}, headers={told.TRACE_HEADER: TRACE})
        return {"name": name}

    @app.post("/stream")
    async def stream():
        async def events():
            yield b"data: 1\n\n"
            await release.wait()
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    told.install(app, Metrics("gateway", "gateway-1"))
    return app


@pytest.fixture
async def client(app):
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


async def scraped(client, accept=""):
    answer = await client.get("/metrics", headers={"accept": accept})
    return Scrape(answer.text, answer.headers["content-type"])


async def test_durations_have_the_traces_of_requests_as_examples(client):
    await client.get("/things/a")
    await client.get("/things/traced")
    found = await scraped(client, OPENMETRICS)
    examples = [one.exemplar.labels for one in found.samples if one.exemplar]
    assert examples == [{"trace_id": TRACE}]


async def test_requests_are_counted_by_route_method_and_code(client):
    for path in ("/things/a", "/things/b", "/things/broken", "/nowhere"):
        await client.get(path)
    await client.request("BREW", "/things/a")
    found = await scraped(client)
    counted = {
        (one.labels["route"], one.labels["method"], one.labels["code"]): one.value
        for one in found.samples
        if one.name == told.REQUESTS.name
    }
    assert counted == {
        ("/things/{name}", "GET", "200"): 2,
        ("/things/{name}", "GET", "500"): 1,
        ("other", "GET", "404"): 1,
        ("/things/{name}", "other", "405"): 1,
    }
    assert found.value(told.DURATION, route="/things/{name}") == 4


async def test_both_formats_are_served(client):
    await client.get("/things/a")
    for accept in ("", OPENMETRICS):
        found = await scraped(client, accept)
        assert found.value(told.REQUESTS, code="200") >= 1
        assert found.value(told.RUNNING) == 0  # the scrape itself is none


async def streaming(app):
    """A stream that has begun, asked for by hand as a server would do it, and what is set when its
    client leaves."""
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
        "method": "POST", "path": "/stream", "raw_path": b"/stream", "query_string": b"",
        "headers": [], "scheme": "http", "server": ("gateway", 80), "client": ("client", 1),
        "root_path": "",
    }  # fmt: skip
    gone, sent = asyncio.Event(), asyncio.Queue()
    messages = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive():
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    running = asyncio.create_task(app(scope, receive, sent.put))
    await sent.get()
    return running, gone


async def test_streams_are_counted_while_they_run(app, client, release):
    running, _ = await streaming(app)
    found = await scraped(client)
    assert (found.value(told.STREAMS), found.value(told.RUNNING)) == (1, 1)
    release.set()
    await running
    found = await scraped(client)
    assert found.value(told.STREAMS) == 0
    assert found.value(told.DISCONNECTS) == 0
    assert found.value(told.REQUESTS, route="/stream", code="200") == 1


async def test_a_client_that_leaves_is_a_disconnect(app, client):
    running, gone = await streaming(app)
    gone.set()
    await asyncio.wait_for(running, 2.0)
    found = await scraped(client)
    assert found.value(told.DISCONNECTS) == 1
    assert found.value(told.REQUESTS, route="/stream", code="499") == 1
    assert found.value(told.STREAMS) == 0
