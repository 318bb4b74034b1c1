import pytest

from baton import naming


def test_names_are_sixteen_bytes_and_stable():
    root = naming.chain_root("layout", b"tenant")
    block = naming.chain_next(root, [1, 2, 3])
    blob = naming.blob_name(block, 0)
    assert [len(name) for name in (root, block, blob)] == [16, 16, 16]
    assert blob.hex() == "9a25aff108b27f03b4997972d0022e85"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (naming.chain_root("a", b"b"), naming.chain_root("ab", b"")),
        (naming.chain_root("a", b""), naming.chain_root("a", b"salt")),
        (
            naming.chain_next(naming.chain_root("a"), [1, 2]),
            naming.chain_next(naming.chain_root("a"), [1, 2, 0]),
        ),
        (
            naming.chain_next(naming.chain_root("a"), [1]),
            naming.chain_next(naming.chain_root("b"), [1]),
        ),
        (
            naming.blob_name(naming.chain_root("a"), 0),
            naming.blob_name(naming.chain_root("a"), 1),
        ),
        (
            naming.blob_name(naming.chain_root("a"), 0, 1),
            naming.blob_name(naming.chain_root("a"), 0, 0),
        ),
    ],
)
def test_names_differ_where_the_bytes_would(one, other):
    assert one != other


def test_the_order_of_blocks_is_part_of_the_name():
    root = naming.chain_root("a")
    forward = naming.chain_next(naming.chain_next(root, [1]), [2])
    backward = naming.chain_next(naming.chain_next(root, [2]), [1])
    assert forward != backward


def test_new_ids_are_unique():
    ids = {naming.new_id("req") for _ in range(1000)}
    assert len(ids) == 1000
    assert all(one.startswith("req-") for one in ids)
