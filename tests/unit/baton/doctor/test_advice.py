"""What the doctor advises can be done: the flags that it names are there."""

import re
from pathlib import Path

import pytest
import typer.main

import baton.doctor
from baton.cli import app
from services.decode.settings import DecodeSettings
from services.prefill.settings import PrefillSettings
from services.router.settings import RouterSettings

WORDS = "\n".join(path.read_text() for path in Path(baton.doctor.__file__).parent.glob("*.py"))
SETTINGS = {
    "router": [RouterSettings],
    "prefill": [PrefillSettings],
    "decode": [DecodeSettings],
    "worker": [PrefillSettings, DecodeSettings],
}
COMMANDS = ("up", "doctor")


def test_flags_of_services():
    named = set(re.findall(r"([a-z]+):--([a-z-]+)", WORDS))
    assert len(named) > 5
    for room, flag in named:
        for settings in SETTINGS[room]:
            assert flag.replace("-", "_") in settings.model_fields, f"{room}:--{flag}"


@pytest.mark.parametrize("flag", sorted(set(re.findall(r"(?<![a-z]:)(--[a-z-]+)", WORDS))))
def test_flags_of_commands(flag):
    commands = typer.main.get_command(app).commands
    known = {one for name in COMMANDS for param in commands[name].params for one in param.opts}
    assert flag in known
