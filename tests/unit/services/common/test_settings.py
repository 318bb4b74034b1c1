"""Flags and variables become settings."""

import sys

import pytest
from pydantic import Field, ValidationError

from services.common.settings import ServiceSettings


class Some(ServiceSettings):
    model: str = Field(description="required")
    block_size: int = Field(16, ge=1)


@pytest.fixture
def flags(monkeypatch):
    def given(*arguments):
        monkeypatch.setattr(sys, "argv", ["some", *arguments])

    return given


def test_flags_come_before_the_environment(flags, monkeypatch):
    monkeypatch.setenv("BATON_MODEL", "from the environment")
    monkeypatch.setenv("BATON_BLOCK_SIZE", "8")
    flags("--block-size=4")
    settings = Some()
    assert (settings.model, settings.block_size) == ("from the environment", 4)


def test_every_wrong_setting_is_named(flags):
    flags("--block-size=0", "--log-level=LOUD")
    with pytest.raises(ValidationError) as raised:
        Some()
    wrong = [".".join(map(str, one["loc"])) for one in raised.value.errors()]
    assert sorted(wrong) == ["block_size", "log_level", "model"]


def test_an_unknown_flag_is_refused(flags, capsys):
    flags("--model=m", "--bloc-sise=4")
    with pytest.raises(SystemExit) as ended:
        Some()
    assert ended.value.code == 2
    assert "--bloc-sise" in capsys.readouterr().err


def test_an_address_to_advertise_may_lack_its_brackets(flags):
    flags("--model=m", "--advertise=fd00::1:7601")
    assert Some().advertise == "[fd00::1]:7601"
