"""What the planner may be told."""

import sys
from dataclasses import fields

import pytest

from services.common.process import read_settings
from services.planner.config import PlannerConfig
from services.planner.settings import PlannerSettings

KUBERNETES = (
    *("--scaler=kubernetes", "--namespace=models", "--lease=baton-planner"),
    *("--prefill-deployment=p", "--decode-deployment=d"),
)
LOCAL = ("--replicas-file=r.json", "--state-file=s.json")


@pytest.fixture
def settings(monkeypatch):
    def read(*flags):
        monkeypatch.setattr(sys, "argv", ["planner", *flags])
        return read_settings(PlannerSettings)

    return read


def test_every_number_of_the_config_has_a_flag_with_its_default():
    plain, flags = PlannerConfig(), PlannerSettings.model_fields
    for one in fields(PlannerConfig):
        assert flags[one.name].default == getattr(plain, one.name), one.name
        assert flags[one.name].description


def test_flags_become_the_config(settings):
    flags = ("--min-prefill=2", "--gpu-budget=12", "--react-s=0.5", "--period-s=2", "--no-forecast")
    config = settings(*LOCAL, *flags).config
    assert (config.min_prefill, config.gpu_budget, config.react_s) == (2, 12, 0.5)
    assert (config.period_s, config.forecast, config.max_decode) == (2.0, False, 8)


def test_kubernetes_by_flags(settings):
    told = settings(*KUBERNETES, "--dry-run")
    assert (told.scaler, told.namespace, told.dry_run) == ("kubernetes", "models", True)
    assert settings(*KUBERNETES).dry_run is False


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (KUBERNETES[:2], "--scaler=kubernetes needs --prefill-deployment"),
        (KUBERNETES[:1], "--scaler=kubernetes needs --namespace"),
        (LOCAL[:1], "--scaler=local needs --state-file"),
        ((*LOCAL, "--min-decode=9"), "min_decode is 9 and max_decode is 8"),
        ((*LOCAL, "--gpu-budget=1"), "gpu_budget is 1, the least workers need 2"),
        ((*LOCAL, "--react-s=0"), "--react-s 0: Input should be greater than 0"),
        ((*LOCAL, "--attainment=1"), "--attainment 1: Input should be less than 1"),
        ((*LOCAL, "--scaler=docker"), "--scaler docker: Input should be 'kubernetes' or 'local'"),
    ],
)
def test_what_can_not_work_is_refused_in_a_line(settings, capsys, flags, problem):
    with pytest.raises(SystemExit) as ended:
        settings(*flags)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line
    assert not line.startswith("--:")
