"""The page over HTTP: its files, their policy, and what it polls."""

import json

import httpx2 as httpx
import pytest
from fastapi import FastAPI

from baton.errors import Cancelled, DeadlineExceeded, InternalError, Unavailable
from services.gateway.page.files import page_files
from services.gateway.page.routes import add_ui, ui_wanted
from services.gateway.page.watch import Watch
from tests.support.page import FakeUpstream, report, span


@pytest.fixture
def router():
    return FakeUpstream()


@pytest.fixture
async def http(router):
    app = FastAPI()
    add_ui(app, Watch([router]))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


async def test_the_page_and_its_files_are_served(http):
    moved = await http.get("/ui")
    assert (moved.status_code, moved.headers["location"]) == (308, "ui/")
    page = await http.get("/ui/")
    assert page.headers["content-type"].startswith("text/html")
    for name in page_files():
        answer = await http.get(f"/ui/{name}")
        assert answer.status_code == 200
        assert answer.headers["x-content-type-options"] == "nosniff"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        again = await http.get(f"/ui/{name}", headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "path", ["nothing.js", "..%2fapp.py", "%2e%2e", "data/nothing", "__init__.py"]
)
async def test_nothing_else_is_served(http, path):
    answer = await http.get(f"/ui/{path}")
    assert answer.status_code == 404
    assert b"import" not in answer.content


def test_the_page_names_no_other_origin():
    for name, file in page_files().items():
        text = file.body.decode().replace("http://www.w3.org/2000/svg", "")
        assert "//" not in text.replace("// ", "").replace("'//'", ""), name
        assert "innerHTML" not in text
        assert "style=" not in text


async def test_live_data_have_the_shape_that_the_page_reads(http, router):
    router.reports.append(report("r-1", queue_s=0.1, prefill_s=0.3))
    body = (await http.get("/ui/data/live")).json()
    (row,) = body["requests"]
    assert row["id"] == "r-1"
    assert row["ttft_s"] == pytest.approx(0.4)
    assert (row["ttft_held"], row["itl_held"]) == (True, True)
    assert sum(part["seconds"] for part in row["parts"]) == pytest.approx(row["total_s"])
    prefill, decode = body["workers"]
    assert (prefill["role"], decode["role"]) == ("prefill", "decode")
    assert decode["kv"] == [
        {"name": "full", "used": 20, "cached": 30, "free": 50, "total": 100, "block_bytes": 65536}
    ]
    assert decode["phases"][0]["flops"] / decode["phases"][0]["busy_s"] == pytest.approx(1.2e12)
    assert decode["peaks"] == {"flops": 6e12, "bytes": 3e11}
    assert decode["cost"]["relative_error"] == pytest.approx(0.043)
    assert {"ttft", "itl", "outcomes", "waiting", "output_tokens"} <= body["series"].keys()


async def test_live_data_are_json_for_browsers(http, router):
    router.reports.append(report("r", tokens=0, itl_s=None, ttft_target_s=None, itl_target_s=None))
    answer = await http.get("/ui/data/live?after=0")
    json.loads(answer.text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("after", ["-1", "x", str(2**60)])
async def test_a_bad_number_is_refused(http, router, after):
    assert (await http.get("/ui/data/live", params={"after": after})).status_code in (400, 422)
    assert router.calls == []


async def test_keys_come_as_bearer_tokens(http, router):
    router.operators, router.tenants = ["good"], ["tenant"]
    refused = await http.get("/ui/data/live")
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    assert refused.json()["error"]["reason"] == "UNAUTHENTICATED"
    wrong = await http.get("/ui/data/live", headers={"authorization": "Bearer tenant"})
    assert wrong.status_code == 403
    right = await http.get("/ui/data/live", headers={"authorization": "bearer good"})
    assert right.status_code == 200
    assert (await http.get("/ui/data/trace/r")).status_code == 401


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Unavailable("gone"), 503),
        (DeadlineExceeded("slow"), 504),
        (Cancelled("stopped"), 503),
        (InternalError("broken"), 500),
    ],
)
async def test_routers_failures_are_told(http, router, error, status):
    router.broken = error
    answer = await http.get("/ui/data/live")
    assert answer.status_code == status
    assert answer.json()["error"]["message"] == error.message


async def test_traces(http, router):
    router.spans["r-1"] = [span("http", 1.0, 0.5, "a")]
    assert (await http.get("/ui/data/trace/r-1")).json()["spans"][0]["name"] == "http"
    assert (await http.get("/ui/data/trace/other")).status_code == 404
    assert (await http.get("/ui/data/trace/a%20b")).status_code == 400
    assert (await http.get("/ui/data/trace/" + "a" * 129)).status_code == 400


@pytest.mark.parametrize(
    ("mode", "address", "wanted"),
    [
        ("auto", "127.0.0.1:8000", True),
        ("auto", "localhost:8000", True),
        ("auto", "[::1]:8000", True),
        ("auto", "0.0.0.0:8000", False),
        ("auto", "[::]:8000", False),
        ("auto", "gateway.example:80", False),
        ("on", "0.0.0.0:8000", True),
        ("off", "127.0.0.1:8000", False),
    ],
)
def test_where_the_page_is_wanted(mode, address, wanted):
    assert ui_wanted(mode, address) is wanted
