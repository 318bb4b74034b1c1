"""The options of commands that call a router, and `baton key`."""

import inspect

import pytest
from typer.testing import CliRunner

from baton import keys
from baton.cli import app
from baton.cli.connect import Connection, connects
from baton.keys import Owner
from baton.tls import Tls
from tests.support.certificates import Authority

OPTIONS = {"address", "api_key", "tls", "tls_ca", "tls_cert", "tls_key", "tls_server_name"}


def run(*arguments, **env):
    return CliRunner().invoke(app, arguments, env=env)


def test_a_key_and_its_line():
    done = run("key", "acme", "--operator")
    assert done.exit_code == 0
    key, line = done.stdout.splitlines()
    assert keys.parse_lines(line) == {keys.digest_of(key): Owner("acme", operator=True)}


def test_a_tenant_needs_a_name():
    done = run("key", "two words")
    assert done.exit_code == 1
    assert "TENANT" in done.output


def test_a_command_gets_the_options_in_place_of_its_connection():
    seen = []

    @connects
    def command(connection: Connection, loud: bool = False) -> None:
        seen.append((connection, loud))

    names = set(inspect.signature(command).parameters)
    assert names >= {"loud", *OPTIONS}
    assert "connection" not in names
    rest = dict.fromkeys(names - {"loud", "address", "api_key"})
    command(loud=True, address="127.0.0.1:1", api_key="bk", **rest)
    command(loud=True, address="127.0.0.1:1", api_key=None, **(rest | {"tls": True}))
    assert seen[0] == (Connection("127.0.0.1:1", "bk", None, None), True)
    assert seen[1][0].tls == Tls(None, None, None, None)


@pytest.mark.parametrize("command", ["generate", "status"])
def test_the_options_are_in_the_help(command):
    done = run(command, "--help", COLUMNS="200")
    for name in OPTIONS:
        assert f"--{name.replace('_', '-')}" in done.output
    assert "BATON_API_KEY" in done.output


def test_a_key_from_the_environment_does_not_leave_the_machine_in_plain_text():
    done = run("status", "--address=10.255.255.1:1", BATON_API_KEY="bk-secret")
    assert done.exit_code == 1
    assert "plain text" in done.output
    assert "bk-secret" not in done.output


def test_a_certificate_that_is_not_there_is_named(tmp_path):
    done = run("status", f"--tls-ca={tmp_path / 'absent.pem'}")
    assert done.exit_code == 1
    assert "absent.pem" in done.output


def test_tls_to_a_router_that_speaks_none_is_no_answer(tmp_path):
    own = Authority(tmp_path).issue("own")
    done = run("status", "--address=127.0.0.1:1", f"--tls-ca={own.ca}")
    assert done.exit_code == 1
    assert "not running" in done.output
