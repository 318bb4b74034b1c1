"""What a process says about the settings that it was given."""

import subprocess
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


_SERVICE = """
import atexit, os, signal, sys
from services.common.process import run
from services.common.settings import ServiceSettings

async def main(stop):
    os.kill(os.getpid(), signal.{name})
    await stop.wait()
    os.kill(os.getpid(), signal.{name})
    print("drained", flush=True)

atexit.register(lambda: os.kill(os.getpid(), signal.{name}))
sys.argv = ["service"]
run("service", ServiceSettings(), main)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_signals_that_follow_the_first_one_change_nothing(name):
    """Neither while it drains nor once it has, and is on its way out."""
    source = _SERVICE.format(name=name)
    ended = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "drained\n"), ended.stderr
