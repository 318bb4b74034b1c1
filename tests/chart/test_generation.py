"""What `helm test` runs, against a gateway before a scripted router."""

import os
import subprocess
import sys

import pytest

from baton import errors
from tests.support.chart import MINIMAL, ROOT, merged, release
from tests.support.fake_router import FakeRouter, two_tokens
from tests.support.gateway_server import GatewayServer


def refusing(request):
    raise errors.Unauthenticated("no key")
    yield


def failing(request):
    raise errors.Unavailable("there is no worker", reason="NO_WORKER")
    yield


@pytest.fixture
def run(tmp_path):
    """Runs the test pod's command as the chart configures it; (exit code, what it says)."""

    def run(script, values):
        made = release(merged(MINIMAL, values))
        (pod,) = made.of("Pod")
        (container,) = pod["spec"]["containers"]
        python, path = container["command"]
        assert python == "python"
        folder, name = os.path.split(path)
        (mount,) = [m for m in container["volumeMounts"] if m["mountPath"] == folder]
        (volume,) = [v for v in pod["spec"]["volumes"] if v["name"] == mount["name"]]
        text = made.named("ConfigMap", volume["configMap"]["name"])["data"][name]
        (tmp_path / name).write_text(text)
        with FakeRouter(script) as router, GatewayServer(router) as gateway:
            given = {each["name"]: str(each.get("value", "a-key")) for each in container["env"]}
            given |= {"GATEWAY": gateway.url, "ROUTER": router.address, "PYTHONPATH": str(ROOT)}
            done = subprocess.run(
                [sys.executable, tmp_path / name],
                env={"PATH": os.environ["PATH"], **given},
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=60,
            )
        return done.returncode, done.stdout + done.stderr, router

    return run


def test_it_makes_a_generation_over_both_protocols(run):
    values = {"tests": {"prompt": "By the sea", "apiKey": {"existingSecret": "test-key"}}}
    code, told, router = run(two_tokens, values)
    assert (code, told) == (0, "HTTP: Hello sea\ngRPC: Hello sea\n")
    assert [request.text for request in router.requests] == ["By the sea", "By the sea"]
    for metadata in router.metadata:
        assert metadata["authorization"] == "Bearer a-key"


def test_without_a_key_it_wants_to_be_refused(run):
    keys = {"auth": {"enabled": True, "existingSecret": "api-keys"}}
    code, told, _ = run(refusing, keys)
    assert code == 0, told
    assert told.count("refused") == 2
    code, told, _ = run(two_tokens, keys)
    assert code == 1
    assert "without a key" in told


def test_it_fails_where_nothing_is_generated(run):
    code, told, _ = run(failing, {})
    assert code == 1
    assert "there is no worker" in told
