import pytest

from baton import errors
from services.router.retry import Retries, RetryLimits, given_up, is_retryable


async def test_pauses_grow_up_to_a_cap_and_are_random():
    waited = []

    async def pause(seconds):
        waited.append(seconds)

    retries = Retries(RetryLimits(base_s=0.1, cap_s=0.5), pause)
    for failures, longest in ((1, 0.1), (2, 0.2), (3, 0.4), (4, 0.5), (30, 0.5)):
        waited.clear()
        for _ in range(200):
            await retries.pause(failures)
        assert 0 <= min(waited) < longest / 4
        assert longest * 3 / 4 < max(waited) <= longest


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.Unavailable("x"), True),
        (errors.LostRace("x"), True),
        (errors.Exhausted("x"), False),
        (errors.InternalError("x"), False),
        (errors.DeadlineExceeded("x"), False),
        (errors.LayoutMismatch("x"), False),
    ],
)
def test_only_what_another_worker_may_do_better_is_retried(error, expected):
    assert is_retryable(error) is expected


def test_a_race_lost_too_often_is_a_lack_of_room():
    told = given_up(errors.LostRace("no room"))
    assert isinstance(told, errors.Exhausted)
    assert told.retry_after > 0
    gone = errors.Unavailable("gone")
    assert given_up(gone) is gone
