"""Every item of failures.md has tests, and they exist."""

import ast
from pathlib import Path

import pytest

from tests.faults.catalogue import ELSEWHERE, ITEMS

TESTS = Path(__file__).parents[1]
SOURCES = ("baton", "engine", "kernels", "services")


def functions(path):
    tree = ast.parse(path.read_text())
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_every_item_is_there():
    assert sorted([*ITEMS, *ELSEWHERE]) == list(range(1, 34))


@pytest.mark.parametrize("item", ITEMS)
def test_the_tests_of_an_item_exist(item):
    for name in ITEMS[item]:
        file, _, function = name.partition("::")
        assert (TESTS / file).is_file(), name
        assert not function or function in functions(TESTS / file), name


def test_nothing_unpickles():
    """The part of item 31 that needs no authentication."""
    unsafe = {"pickle", "cPickle", "dill", "shelve", "marshal", "joblib"}
    for room in SOURCES:
        for path in (TESTS.parent / room).rglob("*.py"):
            nodes = ast.walk(ast.parse(path.read_text()))
            found = {
                name.partition(".")[0]
                for node in nodes
                if isinstance(node, ast.Import | ast.ImportFrom)
                for name in [getattr(node, "module", None) or "", *(a.name for a in node.names)]
            }
            assert not found & unsafe, path
