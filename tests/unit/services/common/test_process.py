"""What a process says about the settings that it was given."""

import sys

import pytest
from pydantic import Field

from services.common.process import read_settings
from services.common.settings import ServiceSettings


class Settings(ServiceSettings):
    model: str
    block_size: int = Field(16, le=1024)


def test_settings_come_from_flags_and_environment(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["service", "--model=m", "--block-size=32"])
    monkeypatch.setenv("BATON_LOG_LEVEL", "DEBUG")
    settings = read_settings(Settings)
    assert (settings.model, settings.block_size, settings.log_level) == ("m", 32, "DEBUG")


def test_each_wrong_setting_is_a_line_and_no_traceback(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["service", "--block-size=100000"])
    with pytest.raises(SystemExit) as ended:
        read_settings(Settings)
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        "--model: Field required",
        "--block-size 100000: Input should be less than or equal to 1024",
    ]
