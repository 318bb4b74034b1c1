"""The router's keys: lines, a file that changes while it is used, and what is broken in it."""

import asyncio
import logging
import threading

import pytest

from baton import keys as api_keys
from baton.keys import Owner
from services.router import keys as router_keys
from services.router.keys import Keys

CHECK_S = 0.01


class Watched:
    """Keys of a file that is looked at often."""

    def __init__(self, path, *owners):
        self.path = path
        self.made = {}
        self.write(*owners)
        self.keys = Keys(str(path), CHECK_S)

    def write(self, *owners):
        """A new file in the old one's place, as editors and config maps do it."""
        lines = []
        for owner in owners:
            key = self.made.setdefault(owner, api_keys.new_key())
            lines.append(api_keys.line_of(key, owner))
        self.replace("\n".join(lines))

    def replace(self, text):
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.replace(self.path)

    async def until(self, condition):
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(CHECK_S)


@pytest.fixture
async def watched(tmp_path):
    watched = Watched(tmp_path / "keys", Owner("a"))
    await watched.keys.start()
    yield watched
    await watched.keys.close()


async def test_without_a_source_no_key_is_needed():
    keys = Keys("  ")
    await keys.start()
    assert not keys.required
    await keys.close()


async def test_keys_may_be_given_as_lines():
    key = api_keys.new_key()
    keys = Keys(api_keys.line_of(key, Owner("a", True)))
    await keys.start()
    assert keys.required
    assert keys.owner(key) == Owner("a", True)
    assert keys.owner(key + "x") is keys.owner("") is keys.owner("x" * 10_000) is None
    await keys.close()


async def test_an_empty_file_lets_nobody_in(tmp_path):
    watched = Watched(tmp_path / "keys")
    await watched.keys.start()
    assert watched.keys.required
    assert watched.keys.owner("") is None
    await watched.keys.close()


async def test_a_changed_file_counts_soon(watched):
    old = watched.made[Owner("a")]
    assert watched.keys.owner(old) == Owner("a")
    watched.write(Owner("a"), Owner("b"))
    await watched.until(lambda: watched.keys.owner(watched.made[Owner("b")]))
    assert watched.keys.owner(old) == Owner("a")
    watched.write(Owner("b"))
    await watched.until(lambda: watched.keys.owner(old) is None)
    assert watched.keys.owner(watched.made[Owner("b")]) == Owner("b")


async def test_a_broken_new_file_changes_nothing_and_is_told_once(watched, caplog):
    caplog.set_level(logging.WARNING)
    watched.replace(f"# fine\n{'0' * 63} secret-tenant\n")
    await watched.until(lambda: caplog.messages)
    for _ in range(10):
        await asyncio.sleep(CHECK_S)
    assert watched.keys.owner(watched.made[Owner("a")]) == Owner("a")
    (message,) = caplog.messages
    assert "line 2" in message
    assert "0000" not in message
    assert "secret-tenant" not in message
    watched.write(Owner("b"))
    await watched.until(lambda: watched.keys.owner(watched.made[Owner("b")]))


async def test_a_file_that_is_gone_changes_nothing(watched, caplog):
    caplog.set_level(logging.WARNING)
    watched.path.unlink()
    await watched.until(lambda: caplog.messages)
    assert watched.keys.owner(watched.made[Owner("a")]) == Owner("a")
    watched.write(Owner("b"))
    await watched.until(lambda: watched.keys.owner(watched.made[Owner("b")]))


@pytest.mark.parametrize("content", [None, b"nonsense", b"\xff\xfe\xfd"])
async def test_a_router_does_not_start_with_broken_keys(tmp_path, content):
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OSError, match=f"--api-keys {path}: "):
        await Keys(str(path)).start()


async def test_nor_with_broken_lines():
    with pytest.raises(OSError, match="line 2"):
        await Keys(f"{'0' * 64} a\nx").start()


async def test_many_keys_are_read_beside_the_event_loop(watched, monkeypatch):
    begun, go_on, went_on = threading.Event(), threading.Event(), []

    def held(text):
        begun.set()
        went_on.append(go_on.wait(4))
        return api_keys.parse_lines(text)

    monkeypatch.setattr(router_keys, "parse_lines", held)
    watched.write(Owner("a"), Owner("b"))
    await watched.until(begun.is_set)
    new = watched.made[Owner("b")]
    assert watched.keys.owner(watched.made[Owner("a")]) == Owner("a")
    assert watched.keys.owner(new) is None
    go_on.set()  # by the event loop, which reads no file meanwhile
    await watched.until(lambda: watched.keys.owner(new))
    assert went_on == [True]
