"""Which targets a request has, and its place in the queue."""

import pytest

from baton.policy.score import Urgency
from services.router.request import ClassTargets
from services.router.targets import Targets

DEFAULTS = ClassTargets(2.0, 0.2, 60.0, 2.0)


@pytest.mark.parametrize(
    ("urgency", "targets"),
    [
        (Urgency(), Targets(2.0, 0.2)),
        (Urgency(batch=True), Targets(60.0, 2.0)),
        (Urgency(ttft_target_s=0.5), Targets(0.5, 0.2)),
        (Urgency(itl_target_s=0.03, batch=True), Targets(60.0, 0.03)),
    ],
)
def test_own_targets_come_before_those_of_the_class(urgency, targets):
    assert Targets.of(urgency, DEFAULTS, 0.1) == targets


def test_only_a_default_grows_with_the_prompt():
    assert Targets.of(Urgency(), DEFAULTS, 5.0).ttft_s == 10.0
    assert Targets.of(Urgency(ttft_target_s=0.5), DEFAULTS, 5.0).ttft_s == 0.5


def order(urgency=Urgency(), **changes):  # noqa: B008
    asked = {
        "waited_s": 0.0,
        "started": False,
        "busy": {},
        "weights": {},
        "workers": 2,
        "grace_s": 5.0,
    }
    return Targets(2.0, 0.2).order(urgency, **asked | changes)


def test_who_has_waited_is_due_earlier_and_who_has_started_before_all():
    assert order().due_s == 2.0
    assert order(waited_s=1.5).due_s == pytest.approx(0.5)
    assert order(Urgency(priority=1)).due_s < order().due_s
    assert order(started=True).due_s < order(Urgency(priority=10), waited_s=10.0).due_s


def test_a_tenants_clock_runs_by_its_share():
    tenant = Urgency(tenant="a")
    alone = order(tenant).clock_rate
    assert alone == pytest.approx(1 / 2)
    assert order(tenant, busy={"b/interactive": 1.0}).clock_rate == pytest.approx(2 * alone)
    weighted = order(tenant, busy={"b/interactive": 1.0}, weights={"a": 3.0})
    assert weighted.clock_rate == pytest.approx(alone / 0.75)
    assert order().clock == ""
