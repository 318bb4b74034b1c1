"""The gateway's process, as whoever starts and stops it sees it."""

import asyncio
import re
import urllib.error
import urllib.request

from services.gateway.__main__ import serve
from services.gateway.settings import GatewaySettings


async def ask(address, path):
    """Status and body."""

    def answer():
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=5.0) as got:
                return got.status, got.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""

    return await asyncio.to_thread(answer)


async def until(condition):
    async with asyncio.timeout(20):
        while not await condition():
            await asyncio.sleep(0.01)


async def test_beside_its_metrics_it_is_ready_until_it_is_told_to_stop(tmp_path, caplog):
    """A request whose body does not come keeps it from its end meanwhile."""
    caplog.set_level("INFO")
    ready, stop = tmp_path / "ready", asyncio.Event()
    settings = GatewaySettings(
        _cli_parse_args=[], address="127.0.0.1:0", metrics_address="127.0.0.1:0",
        ready_file=str(ready), ui="off",
    )  # fmt: skip
    running = asyncio.create_task(serve(settings, stop))
    await until(lambda: asyncio.to_thread(ready.exists))
    [metrics] = re.findall(r"http://(\S+)/metrics", caplog.text)
    assert await ask(metrics, "/live") == (200, "live\n")
    assert await ask(metrics, "/ready") == (200, "ready\n")

    host, _, port = ready.read_text().rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n")

    async def is_inside():
        return re.search(
            r"^baton_gateway_running_requests{.* 1\.0$", (await ask(metrics, "/metrics"))[1], re.M
        )

    async def is_not_ready():
        return (await ask(metrics, "/ready"))[0] == 503

    await until(is_inside)
    stop.set()
    await until(is_not_ready)
    assert await ask(metrics, "/live") == (200, "live\n")
    assert not running.done()
    writer.close()
    await asyncio.wait_for(running, 20)
