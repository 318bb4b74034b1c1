from services.common.background import Background
from services.router.channels import Channels


class FakeChannel:
    def __init__(self, address):
        self.address = address
        self.closed = False

    async def close(self):
        self.closed = True


async def test_one_channel_per_address():
    opened = []
    channels = Channels(Background(), connect=lambda a: opened.append(a) or FakeChannel(a))
    for address in ("a", "b", "a", "b"):
        with channels.use(address) as channel:
            assert channel.address == address
    assert opened == ["a", "b"]


async def test_the_longest_unused_are_closed_and_none_in_use():
    background = Background()
    channels = Channels(background, keep=2, connect=FakeChannel)
    with channels.use("busy") as busy:
        with channels.use("old") as old:
            pass
        with channels.use("new") as new:
            pass
        with channels.use("newest") as newest:
            pass
        await background.settled()
        assert [one.closed for one in (busy, old, new, newest)] == [False, True, True, False]
        assert len(channels) == 2
    await channels.close()
    assert busy.closed
    assert newest.closed
