"""A run's room follows what the engine sets aside, a token ahead of it."""

from baton.naming import RequestId
from baton.policy.fleet import Claim, Usage
from engine.types import Request, SamplingParams
from services.worker.growth import Growth
from services.worker.runs import Run


def grown(prompt: int, max_tokens: int, growth: int | None, sampled: int) -> tuple[list[int], int]:
    """The run's room after each token, and how often the fleet was told."""
    request = Request("one", tuple(range(prompt)), SamplingParams(max_tokens=max_tokens))
    first = prompt + max_tokens if growth is None else min(prompt + max_tokens, prompt + growth)
    told = []
    run = Run(Claim(RequestId("one"), 0), Usage(1, first), lambda: told.append(None))
    following, rooms = Growth(run, request, growth), []
    for _ in range(sampled):
        following.sampled(1)
        rooms.append(run.cost.kv_tokens)
    assert run.cost.sequences == 1
    return rooms, len(told)


def test_it_grows_in_the_engines_steps_up_to_the_life():
    rooms, told = grown(10, 20, 8, 20)
    assert rooms == [18] * 6 + [26] * 8 + [30] * 6
    assert told == 2
    for tokens, room in enumerate(rooms, start=11):
        assert room > tokens or room == 30


def test_whole_lives_never_grow():
    assert grown(10, 20, None, 20) == ([30] * 20, 0)


def test_short_lives_never_grow():
    assert grown(10, 5, 8, 5) == ([15] * 5, 0)
