"""The cache index against a plain model of who holds what."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from baton.naming import blob_name, chain_next, chain_root, tenant_salt
from baton.policy.fleet import Role
from services.router.cache_index import INLINE_TOKENS, CacheIndex, sources_of
from tests.support.fleet import worker

BLOCK = 4


def a_worker(name, host="host-a", role=Role.PREFILL, layout="layout"):
    return replace(
        worker(name, role, fingerprint=layout),
        transfer_address=host,
        block_tokens=BLOCK,
        index_group=1,
    )


def names_of(tokens, salt=b"", layout="layout", group=1):
    chain, names = chain_root(layout, salt), []
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        chain = chain_next(chain, tokens[start : start + BLOCK])
        names.append(blob_name(chain, group))
    return names


TOKENS = list(range(100, 121))  # five blocks and a token


def test_a_prefix_ends_at_the_first_block_that_is_missing():
    index, one = CacheIndex(), a_worker("one")
    index.set_workers([one])
    engine, host = sources_of(one)
    names = names_of(TOKENS)
    index.add(engine, names[:2] + names[3:])
    assert index.look_up(TOKENS, b"") == {"one": 2 * BLOCK}
    index.add(host, names[:4])
    assert index.look_up(TOKENS, b"") == {"one": 4 * BLOCK}
    index.remove(host, names[:1])
    assert index.look_up(TOKENS, b"") == {"one": 2 * BLOCK}
    index.drop(engine)
    assert index.look_up(TOKENS, b"") == {}
    index.check_integrity()


def test_one_token_is_always_left_to_compute():
    index, one = CacheIndex(), a_worker("one")
    index.set_workers([one])
    index.add(sources_of(one)[0], names_of(TOKENS))
    assert index.look_up(TOKENS[:20], b"") == {"one": 4 * BLOCK}
    assert index.look_up(TOKENS[:21], b"") == {"one": 5 * BLOCK}
    assert index.look_up(TOKENS[:1], b"") == {}


def test_what_a_host_holds_serves_all_of_its_workers_and_no_other():
    index = CacheIndex()
    workers = [a_worker("one"), a_worker("two"), a_worker("far", "host-b")]
    index.set_workers(workers)
    index.add(sources_of(workers[0])[1], names_of(TOKENS)[:3])
    assert index.look_up(TOKENS, b"") == {"one": 3 * BLOCK, "two": 3 * BLOCK}


def test_tenants_and_layouts_do_not_find_each_other():
    index = CacheIndex()
    one, other = a_worker("one"), a_worker("other", "host-b", layout="another")
    index.set_workers([one, other])
    index.add(sources_of(one)[0], names_of(TOKENS, tenant_salt("acme")))
    index.add(sources_of(other)[0], names_of(TOKENS, layout="another"))
    assert index.look_up(TOKENS, b"") == {"other": 5 * BLOCK}
    assert index.look_up(TOKENS, tenant_salt("acme")) == {"one": 5 * BLOCK}
    assert index.look_up(TOKENS, tenant_salt("rival")) == {}


def test_workers_that_left_are_not_answered_for():
    index, one = CacheIndex(), a_worker("one")
    index.set_workers([one])
    index.add(sources_of(one)[0], names_of(TOKENS))
    index.set_workers([replace(one, incarnation="another")])
    assert index.look_up(TOKENS, b"") == {}


def test_names_beyond_the_limit_are_not_kept():
    index, one = CacheIndex(max_names=3), a_worker("one")
    index.set_workers([one])
    engine, host = sources_of(one)
    index.add(engine, names_of(TOKENS))
    index.add(host, names_of(TOKENS))
    assert len(index) == 3
    assert index.unknown == 7
    assert index.look_up(TOKENS, b"") == {"one": 3 * BLOCK}
    index.drop(engine)
    index.add(host, names_of(TOKENS))
    assert index.look_up(TOKENS, b"") == {"one": 3 * BLOCK}
    index.check_integrity()


async def test_long_prompts_are_looked_up_too():
    index, one = CacheIndex(), a_worker("one")
    index.set_workers([one])
    tokens = list(range(3 * INLINE_TOKENS))
    index.add(sources_of(one)[0], names_of(tokens)[:1000])
    assert await index.cached(tokens, b"") == {"one": 1000 * BLOCK}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "remove", "drop"]),
            st.integers(0, 3),
            st.sets(st.integers(0, 4)),
        ),
        max_size=30,
    )
)
def test_it_agrees_with_plain_sets(changes):
    workers = [a_worker("one"), a_worker("two", "host-b")]
    sources = [source for one in workers for source in sources_of(one)]
    names = names_of(TOKENS)
    index, model = CacheIndex(), {source: set() for source in sources}
    index.set_workers(workers)
    for what, at, blocks in changes:
        source, some = sources[at], [names[block] for block in blocks]
        match what:
            case "add":
                index.add(source, some)
                model[source] |= set(some)
            case "remove":
                index.remove(source, some)
                model[source] -= set(some)
            case "drop":
                index.drop(source)
                model[source] = set()
    index.check_integrity()

    def run(source):
        return next((i for i, name in enumerate(names) if name not in model[source]), len(names))

    found = index.look_up(TOKENS, b"")
    for one in workers:
        expected = max(map(run, sources_of(one)))
        assert found.get(one.worker_id, 0) == expected * BLOCK
