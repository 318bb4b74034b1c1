"""The Dockerfile: linted, and its steps done in a clean directory."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.dockerfile import (
    Dockerfile,
    copy,
    environment,
    ignore_patterns,
    ignored,
)

ROOT = Path(__file__).parents[2]
EXTRAS = {"cpu": {"serve", "planner"}, "cuda": {"serve", "planner", "nixl"}}
COMPILERS = re.compile(r"\b(apt-get|apt|gcc|g\+\+|build-essential|clang)\b")


@pytest.fixture(scope="module")
def dockerfile():
    return Dockerfile(ROOT / "Dockerfile")


def test_a_linter_finds_nothing():
    linter = shutil.which("hadolint", path=os.path.dirname(sys.executable))
    assert linter, "hadolint is part of the `dev` extra"
    done = subprocess.run(
        [linter, "--failure-threshold", "style", ROOT / "Dockerfile"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("variant", EXTRAS)
def test_what_runs_is_no_root_and_has_no_compiler(dockerfile, variant):
    stages = dockerfile.lineage(variant)
    assert [stage.name for stage in stages] == ["runtime", variant]
    steps = dockerfile.steps(variant)
    (user,) = [step.value for step in steps if step.word == "USER"]
    uid, _, gid = user.partition(":")
    assert int(uid) > 0
    assert int(gid) > 0
    assert any(f"--uid {uid} " in step.value for step in steps if step.word == "RUN")
    assert not any(COMPILERS.search(step.value) for step in steps)
    # The command is the chart's; nothing stands in front of it.
    assert not {"ENTRYPOINT", "CMD", "HEALTHCHECK", "ADD"} & {step.word for step in steps}
    (source,) = [step.value for step in steps if step.word == "COPY"]
    assert source == f"--from=builder-{variant} /opt/baton /opt/baton"
    assert environment(steps)["PATH"].split(":")[0] == "/opt/baton/bin"


@pytest.mark.parametrize("variant", EXTRAS)
def test_each_variant_installs_its_extras_with_pinned_versions(dockerfile, variant):
    steps = dockerfile.steps(f"builder-{variant}")
    assert environment(steps)["PIP_CONSTRAINT"] == "/src/constraints.txt"
    (extras,) = re.findall(r"'\.\[([a-z,]+)\]'", " ".join(step.value for step in steps))
    assert set(extras.split(",")) == EXTRAS[variant]


def test_the_build_without_a_target_is_for_cpus(dockerfile):
    assert list(dockerfile.stages)[-1] == "cpu"


def test_the_labels_say_what_it_is(dockerfile):
    label = " ".join(dockerfile.stages["runtime"].values("LABEL"))
    for name in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{name}=" in label
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f'"{project["description"]}"' in label
    assert f"VERSION={project['version']}" in dockerfile.stages["runtime"].values("ARG")


def test_the_chart_runs_it_as_its_own_user(dockerfile):
    (user,) = dockerfile.stages["runtime"].values("USER")
    values = yaml.safe_load((ROOT / "helm/baton/values.yaml").read_text())
    context = values["podSecurityContext"]
    assert user == f"{context['runAsUser']}:{context['runAsGroup']}"


def test_all_that_is_installed_is_pinned():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["serve"], *extras["planner"]]
    assert _closure(asked) - pinned == set()


def _closure(asked):
    """Names of all that these requirements bring, but for the installer's own."""
    found, todo = set(), [(Requirement(text), "") for text in asked]
    while todo:
        requirement, extra = todo.pop()
        name = canonicalize_name(requirement.name)
        marker = requirement.marker
        if (marker and not marker.evaluate({"extra": extra})) or name in ("setuptools", "pip"):
            continue
        wanted = list(requirement.extras) or [""]
        if (name, *wanted) in found:
            continue
        found.add((name, *wanted))
        for text in metadata.requires(name) or ():
            todo += [(Requirement(text), each) for each in {"", *wanted}]
    return {name for name, *_ in found}


def test_only_what_the_image_is_made_of_goes_to_the_build():
    patterns = ignore_patterns(ROOT / ".dockerignore")
    for path in ("services/router/__main__.py", "baton/py.typed", "README.md", "pyproject.toml"):
        assert not ignored(Path(path), patterns), path
    for path in (
        ".git/config",
        ".venv/bin/python",
        "tests/conftest.py",
        "docs/design.md",
        "baton/__pycache__/cli.cpython-311.pyc",
        "helm/baton/values.yaml",
    ):
        assert ignored(Path(path), patterns), path


@pytest.fixture(scope="module")
def installed(dockerfile, tmp_path_factory):
    """The environment that the CPU variant's build makes, less what others wrote."""
    root = tmp_path_factory.mktemp("image")
    prefixes = {"/opt/baton": str(root / "opt"), "/src": str(root / "src")}
    (root / "src").mkdir()
    patterns = ignore_patterns(ROOT / ".dockerignore")
    steps = dockerfile.steps("builder-cpu")
    given = {name: _moved(value, prefixes) for name, value in environment(steps).items()}
    for step in steps:
        if step.word == "COPY":
            copy(step, ROOT, patterns, root / "src")
        elif step.word == "RUN":
            _run(_moved(step.value, prefixes), root / "src", given)
    shutil.rmtree(root / "src")
    return root / "opt"


def _moved(text, prefixes):
    for prefix, place in prefixes.items():
        text = text.replace(prefix, place)
    return text


def _run(command, folder, given):
    bare = folder.parent / "build"  # what would be fetched to build with
    if not bare.exists():
        bare.mkdir()
        site = Path(sysconfig.get_path("purelib"))
        for path in (*site.glob("setuptools*"), site / "_distutils_hack"):
            (bare / path.name).symlink_to(path)
    env = {**os.environ, **given, "PIP_NO_DEPS": "1", "PIP_NO_COMPILE": "1"}
    env |= {"PIP_NO_BUILD_ISOLATION": "0", "PYTHONPATH": str(bare)}
    env |= {"PATH": f"{os.path.dirname(sys.executable)}:{env['PATH']}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout


def _python(installed, *arguments):
    """Runs the installed Python, with what others wrote taken from the tests' own environment."""
    return subprocess.run(
        [installed / "bin" / "python", *arguments],
        cwd=installed,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": sysconfig.get_path("purelib")},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.slow
def test_its_steps_install_all_services_and_their_files(installed):
    (site,) = installed.glob("lib/python3*/site-packages")
    for folder in ("baton", "engine", "kernels", "services"):
        got = {
            path.relative_to(site): path.read_bytes()
            for path in (site / folder).rglob("*")
            if path.is_file() and path.suffix != ".pyc"
        }
        wanted = {
            path.relative_to(ROOT): path.read_bytes()
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and path.suffix != ".pyc"
        }
        assert got.keys() == wanted.keys()
        assert got == wanted
    assert not (site / "tests").exists()


@pytest.mark.slow
def test_installed_services_start_from_there(installed):
    """Those without torch, which costs seconds; the workers' files are compared above."""
    code = """
import importlib, sys, baton, services
for name in ("gateway", "transfer", "planner", "router"):
    main = importlib.import_module(f"services.{name}.__main__").main
print(baton.__file__, services.__file__, sep="\\n")
sys.argv[1:] = ["--help"]
main()
"""
    done = _python(installed, "-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    files = done.stdout.splitlines()[:2]
    assert all(Path(file).is_relative_to(installed) for file in files), files
    assert "--tenant-limits" in done.stdout
