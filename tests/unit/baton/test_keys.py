"""API keys and their lines."""

import hashlib

import pytest

from baton import keys
from baton.keys import KeyLineError, Owner


def test_a_new_key_is_long_random_and_fit_for_a_header():
    made = {keys.new_key() for _ in range(100)}
    assert len(made) == 100
    for key in made:
        assert key.startswith("bk-")
        assert len(key) >= 3 + 43  # 32 bytes in base64
        assert key.isascii()
        assert key.isprintable()
        assert " " not in key


@pytest.mark.parametrize(
    ("authorization", "key"),
    [
        ("Bearer bk-1", "bk-1"),
        (" bearer  bk-1 ", "bk-1"),
        ("Basic bk-1", ""),
        ("bk-1", ""),
        ("Bearer", ""),
        ("", ""),
    ],
)
def test_a_key_comes_as_bearer(authorization, key):
    assert keys.bearer_of(authorization) == key


def test_a_line_has_the_hash_and_not_the_key():
    key = keys.new_key()
    line = keys.line_of(key, Owner("acme", operator=True))
    assert line == f"{hashlib.sha256(key.encode()).hexdigest()} acme operator"
    assert key not in line
    assert keys.parse_lines(line) == {keys.digest_of(key): Owner("acme", True)}


def test_a_tenant_may_have_several_keys_and_comments_are_left_out():
    first, second = keys.new_key(), keys.new_key()
    text = f"""
        # acme's keys
        {keys.line_of(first, Owner("acme"))}   # the old one
        {keys.digest_of(second).upper()} acme

    """
    assert keys.parse_lines(text) == {
        keys.digest_of(first): Owner("acme"),
        keys.digest_of(second): Owner("acme"),
    }


DIGEST = keys.digest_of("x")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("nonsense acme", 1),
        (f"# fine\n\n{DIGEST[:-1]} acme", 3),
        (f"{DIGEST}", 1),
        (f"{DIGEST} sp/ace", 1),
        (f"{DIGEST} acme admin", 1),
        (f"{DIGEST} acme operator operator", 1),
        (f"{DIGEST} acme\n{DIGEST} other", 2),
        (f"{DIGEST} {'x' * 65}", 1),
    ],
)
def test_a_broken_line_is_told_by_its_number_and_not_by_what_it_says(text, number):
    with pytest.raises(KeyLineError) as raised:
        keys.parse_lines(text)
    assert f"line {number}:" in str(raised.value)
    assert "nonsense" not in str(raised.value)
    assert DIGEST[:16] not in str(raised.value)


def test_a_name_of_a_file_is_no_line():
    assert not keys.looks_like_lines("/etc/baton/keys")
    assert keys.looks_like_lines(f"{DIGEST} acme")
    assert keys.looks_like_lines(f"# one\n{DIGEST} acme\n")


@pytest.mark.parametrize("name", ["", "two words", "x" * 65, "ü"])
def test_a_line_needs_a_tenants_name(name):
    with pytest.raises(ValueError, match="tenant"):
        keys.line_of("key", Owner(name))
