"""The gateway's own page in a real browser, on a real cluster."""

import json
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import expect, sync_playwright

from baton.local.child import Child, ProcessSpec, log_tail
from baton.local.plan import free_port
from baton.local.state import Kind

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
ATTACK = "<img src=x onerror=alert(1)><script>alert(2)</script>"
SOON_MS = 8_000
START_S = 60.0

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: `make chromium`"),
]


@dataclass(frozen=True)
class Gateway:
    url: str


@pytest.fixture(scope="module")
def gateway(shared_cluster, tmp_path_factory):
    """A gateway of its own in front of the shared cluster, which others use too."""
    directory = tmp_path_factory.mktemp("ui")
    address, ready = f"127.0.0.1:{free_port()}", directory / "ready"
    flags = (f"--address={address}", f"--router={shared_cluster.address}", f"--ready-file={ready}")
    child = Child(
        ProcessSpec(
            name="gateway",
            kind=Kind.GATEWAY,
            command=(sys.executable, "-P", "-m", "services.gateway", *flags),
            address=address,
            grace=10.0,
            log=directory / "log",
            ready_file=ready,
        )
    )
    try:
        deadline = time.monotonic() + START_S
        while not child.ready():
            assert child.exit_code() is None, log_tail(child.spec.log)
            assert time.monotonic() < deadline, log_tail(child.spec.log)
            time.sleep(0.05)
        yield Gateway(f"http://{address}")
        child.signal(signal.SIGTERM)
        assert child.wait(child.spec.grace), log_tail(child.spec.log)
        assert child.exit_code() == 0, log_tail(child.spec.log)
    finally:
        child.signal(signal.SIGKILL)
    shared_cluster.assert_clean()


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield running
        running.close()


class Visit:
    """An open page, and what it did that it must not."""

    def __init__(self, browser, url, *, route=None, **options):
        """`route` answers what the page polls, instead of the gateway."""
        self.context = browser.new_context(color_scheme="light", **options)
        self.page = self.context.new_page()
        if route is not None:
            self.page.route("**/data/live*", route)
        self.page.set_default_timeout(SOON_MS)
        self.complaints = []
        self.urls = []
        self.page.on("console", lambda one: self.complaints.append(one.text))
        self.page.on("pageerror", lambda one: self.complaints.append(str(one)))
        self.page.on("dialog", lambda one: self.complaints.append(f"dialog: {one.message}"))
        self.page.on("request", lambda one: self.urls.append(one.url))
        self.page.goto(f"{url}/ui")

    def __enter__(self):
        expect(self.page.locator("body.ready")).to_be_attached()
        return self

    def __exit__(self, *_):
        self.context.close()


@pytest.fixture
def visit(browser, gateway):
    with Visit(browser, gateway.url, viewport={"width": 1600, "height": 1000}) as opened:
        yield opened
        assert not opened.complaints
        assert {url.startswith(f"{gateway.url}/ui") for url in opened.urls} == {True}


def complete(gateway):
    """A completion over HTTP; the request's id."""
    body = {"prompt": "Once upon a time there was", "max_tokens": 24, "ignore_eos": True}
    request = Request(
        f"{gateway.url}/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urlopen(request, timeout=30) as answer:
        return answer.headers["x-baton-request-id"]


def rows(page):
    return page.locator("#requests > li.item")


def live(gateway):
    with urlopen(f"{gateway.url}/ui/data/live", timeout=10) as answer:
        return json.load(answer)


def test_an_idle_gateway_tells_how_to_send_a_first_request(browser, gateway):
    fresh = {**live(gateway), "requests": [], "last_number": 0}
    with Visit(browser, gateway.url, route=lambda route: route.fulfill(json=fresh)) as opened:
        code = opened.page.locator("#empty code")
        expect(code).to_contain_text(f"curl {gateway.url}/v1/completions")
        assert json.loads(code.inner_text().split("-d '")[1].rstrip("'"))["max_tokens"] == 32
        expect(opened.page.locator("#tiles")).to_contain_text("1/1")
        expect(opened.page.locator("#workers tbody tr")).to_have_count(2)
        expect(opened.page.locator("#main")).not_to_contain_text("undefined")
        expect(opened.page.locator("#main")).not_to_contain_text("NaN")


def test_requests_appear_and_their_parts_add_up(visit, gateway):
    page = visit.page
    ids = [complete(gateway) for _ in range(3)]
    for one in ids:
        page.fill("#find", one)
        expect(rows(page)).to_have_count(1)
    row = rows(page).first
    expect(row).to_contain_text("→ 24")
    (found,) = [one for one in live(gateway)["requests"] if one["id"] == ids[-1]]
    lengths = {part["name"]: part["seconds"] for part in found["parts"]}
    assert sum(lengths.values()) == pytest.approx(found["total_s"])
    assert {"queue", "compute", "publish", "handoff", "decode"} <= lengths.keys()
    before = found["total_s"] - lengths["handoff"] - lengths["decode"]
    assert before == pytest.approx(found["ttft_s"], abs=1e-6)
    at = 0.0
    for left, width in row.locator(".part").evaluate_all(
        "parts => parts.map(({style}) => [parseFloat(style.left), parseFloat(style.width)])"
    ):
        assert left == pytest.approx(at, abs=1e-3)
        at = left + width

    row.locator("button").hover()
    expect(page.locator("#tip")).to_contain_text("Decode")
    row.locator("button").click()
    dialog = page.locator("#request")
    expect(dialog).to_contain_text("completed")
    expect(dialog.locator("table.parts tfoot")).to_contain_text("Total")
    expect(dialog.locator(".tree .name").first).to_contain_text("http")
    expect(dialog.locator(".tree .name", has_text="queue").first).to_be_visible()
    expect(dialog.locator(".tree .name", has_text="decode").first).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).not_to_be_visible()
    expect(page.locator("#main")).not_to_contain_text("NaN")


def test_a_request_in_progress_is_shown_until_it_ends(browser, gateway):
    complete(gateway)
    shown = live(gateway)
    one = {**shown["requests"][-1], "id": "going"}
    going = {**one, "outcome": "running", "output_tokens": 2}
    looks = iter([
        {**shown, "requests": [], "in_progress": [going]},
        {**shown, "requests": [], "in_progress": [{**going, "output_tokens": 3}]},
    ])  # fmt: skip
    after = {**shown, "requests": [one], "in_progress": []}
    answer = lambda route: route.fulfill(json=next(looks, after))  # noqa: E731
    with Visit(browser, gateway.url, route=answer) as opened:
        opened.page.fill("#find", "going")
        row = rows(opened.page)
        expect(row.locator(".tokens")).to_contain_text("→ 3")
        expect(row.locator(".when")).to_have_text("now")
        expect(row.locator(".outcome.completed")).to_be_visible()
        expect(row).to_have_count(1)


def test_the_keyboard_reaches_a_request_and_the_theme_stays(visit):
    page = visit.page
    background = "getComputedStyle(document.body).backgroundColor"
    theme = page.locator("#theme")
    before = page.evaluate(background)
    theme.focus()
    page.keyboard.press("Enter")
    after = page.evaluate(background)
    assert before != after
    page.reload()
    expect(page.locator("body.ready")).to_be_attached()
    assert page.evaluate(background) == after
    expect(theme).to_have_text("Light")
    page.locator("#requests button").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#request")).to_be_visible()


def test_filters_keep_what_they_say(visit, gateway):
    page = visit.page
    page.fill("#find", complete(gateway))
    expect(rows(page)).to_have_count(1)
    page.locator("#filters button", has_text="failed").click()
    expect(rows(page)).to_have_count(0)
    expect(page.locator("#requests")).to_contain_text("No request is like that")
    page.locator("#filters button", has_text="completed").click()
    expect(rows(page)).to_have_count(1)


@pytest.mark.parametrize("width", [360, 900, 1600])
def test_nothing_is_wider_than_the_window(browser, gateway, width):
    with Visit(browser, gateway.url, viewport={"width": width, "height": 900}) as opened:
        inside = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        assert opened.page.evaluate(inside)


def test_what_clients_send_is_never_markup(visit, gateway):
    page = visit.page
    answer = live(gateway)
    attacked = json.loads(json.dumps(answer["requests"][-1]))
    # A router refuses such ids; a page must not rely on that.
    attacked |= {"id": ATTACK, "tenant": ATTACK, "reason": ATTACK, "outcome": "failed",
                 "prefill_worker": ATTACK, "arrival_s": attacked["arrival_s"] + 1}  # fmt: skip
    answer["workers"][0] |= {"id": ATTACK, "error": ATTACK, "state": "broken"}
    answer |= {"requests": [attacked], "model": ATTACK, "restarted": True}
    page.route("**/data/live*", lambda route: route.fulfill(json=answer))
    expect(rows(page)).to_have_count(1)
    expect(rows(page)).to_contain_text(ATTACK)
    expect(page.locator("#workers tbody tr").first).to_contain_text(ATTACK)
    rows(page).locator("button").hover()
    expect(page.locator("#tip")).to_contain_text(ATTACK)
    rows(page).locator("button").click()
    expect(page.locator("#request")).to_contain_text(ATTACK)
    assert page.locator("img[src='x'], main script, dialog script").count() == 0


def test_a_gateway_that_does_not_answer_is_told(browser, gateway):
    with Visit(browser, gateway.url) as opened:
        page = opened.page
        page.clock.install()
        page.reload()
        expect(page.locator("#freshness")).to_contain_text("live")
        page.route("**/data/live*", lambda route: route.abort())
        page.clock.fast_forward(6_000)
        expect(page.locator("#freshness")).to_contain_text("stale")
        page.clock.fast_forward(2_000)
        expect(page.locator("#stale")).to_contain_text("cannot be reached")
        page.unroute("**/data/live*")
        page.clock.fast_forward(10_000)
        expect(page.locator("#stale")).to_be_hidden()
        expect(page.locator("#freshness")).to_contain_text("live")


def test_a_hidden_page_asks_for_nothing(browser, gateway):
    with Visit(browser, gateway.url) as opened:
        page = opened.page
        page.clock.install()
        page.reload()
        expect(page.locator("body.ready")).to_be_attached()
        page.evaluate("Object.defineProperty(document, 'hidden', {get: () => away}); away = true")
        page.clock.run_for(3_000)
        before = len(opened.urls)
        page.clock.run_for(60_000)
        assert len(opened.urls) == before
        with page.expect_request("**/data/live*"):
            page.evaluate("away = false; document.dispatchEvent(new Event('visibilitychange'))")


def test_where_keys_are_needed_the_page_asks_for_one(browser, gateway):
    refused = {"error": {"reason": "UNAUTHENTICATED", "message": "no key"}}

    def keyed(route):
        if route.request.headers.get("authorization") == "Bearer right":
            route.continue_()
        else:
            route.fulfill(status=401, json=refused)

    with Visit(browser, gateway.url) as opened:
        page = opened.page
        page.route("**/data/live*", keyed)
        expect(page.locator("#key")).to_be_visible()
        expect(page.locator("#main")).not_to_be_visible()
        page.fill("#key-input", "wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#key-why")).to_have_text("That key is not known.")
        page.fill("#key-input", "right")
        page.keyboard.press("Enter")
        expect(page.locator("#key")).to_be_hidden()
        expect(page.locator("#tiles")).to_contain_text("Goodput")
        assert page.evaluate("localStorage.length") == 0
