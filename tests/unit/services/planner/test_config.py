"""Numbers that contradict each other are refused."""

import pytest

from services.planner.config import PlannerConfig


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_decode": 0}, "min_decode is 0"),
        ({"min_prefill": 9}, "max_prefill is 8"),
        ({"gpu_budget": 1}, "the least workers need 2"),
        ({"gpus_per_decode": -1}, "negative"),
        ({"react_s": 0}, "react_s is not above 0"),
        ({"scale_down_after_s": -1}, "scale_down_after_s is negative"),
        ({"period_s": 1}, "period_s is shorter"),
        ({"season_s": 400}, "season_s is shorter"),
        ({"attainment": 1.0}, "attainment"),
        ({"headroom": 0.9}, "headroom"),
    ],
)
def test_what_can_not_be_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        PlannerConfig(**changes)
