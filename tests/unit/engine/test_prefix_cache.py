"""KV that was computed once is used again, by whoever may, as long as its blocks are there."""

from engine.types import Request
from tests.support.engines import assert_idle, drive, fake_engine, greedy, run
from tests.support.fake_model import FakeModel

MODEL = FakeModel((None, 6))


def prompt_of(length: int, start: int = 0) -> tuple[int, ...]:
    return tuple((start + i) % 97 for i in range(length))


def test_a_prefix_is_reused_at_every_boundary_of_its_window() -> None:
    base = prompt_of(40)
    for shared in range(1, 41):
        engine = fake_engine()
        run(engine, Request("first", base, greedy(1)))
        prompt = base[:shared] + prompt_of(5, start=60)
        admission = engine.admit(Request("second", prompt, greedy(6)))
        expected = min(shared, 40) // 4 * 4
        assert (admission.cached_tokens, admission.local_tokens) == (expected, expected)
        assert engine.start("second") == expected
        assert drive(engine)["second"].tokens == MODEL.greedy(prompt, 6)
        assert engine.status().cached_tokens == expected
        assert_idle(engine)


def test_output_is_prefix_of_the_next_turn() -> None:
    engine = fake_engine()
    prompt = prompt_of(10)
    text = run(engine, Request("first", prompt, greedy(15))).tokens
    longer = (*prompt, *text, 5, 6, 7)
    assert engine.admit(Request("second", longer, greedy(4))).cached_tokens == 24
    engine.start("second")
    assert drive(engine)["second"].tokens == MODEL.greedy(longer, 4)


def test_a_running_sequence_shares_its_blocks() -> None:
    engine = fake_engine()
    prompt = prompt_of(20)
    engine.admit(Request("first", prompt, greedy(30)))
    engine.start("first")
    results = drive(engine, until=lambda r: "first" in r and bool(r["first"].tokens))
    used = engine.status().groups[0].used_blocks
    assert engine.admit(Request("second", prompt, greedy(30))).cached_tokens == 16
    assert engine.status().groups[0].used_blocks == used
    engine.start("second")
    drive(engine, results)
    assert results["first"].tokens == results["second"].tokens == MODEL.greedy(prompt, 30)
    assert_idle(engine)


def test_tenants_do_not_share() -> None:
    engine = fake_engine()
    run(engine, Request("first", prompt_of(20), greedy(1), salt=b"one"))
    assert engine.admit(Request("other", prompt_of(20), greedy(1), salt=b"two")).cached_tokens == 0
    assert engine.admit(Request("same", prompt_of(20), greedy(1), salt=b"one")).cached_tokens == 16


def test_cached_blocks_give_way_to_new_ones() -> None:
    engine = fake_engine(windows=(None,), kv_bytes=32 * 12, max_sequences=1, max_position=40)
    for start in range(0, 90, 10):
        prompt = prompt_of(30, start)
        assert run(engine, Request("r", prompt, greedy(8))).tokens == FakeModel((None,)).greedy(
            prompt, 8
        )
        assert_idle(engine)
    assert engine.status().groups[0].cached_blocks > 0
    assert engine.admit(Request("old", prompt_of(30, 0), greedy(1))).cached_tokens == 0


def test_an_evicted_prefix_loses_its_end_first() -> None:
    engine = fake_engine(windows=(None,), kv_bytes=32 * 12, max_sequences=1, max_position=40)
    run(engine, Request("first", prompt_of(36), greedy(1)))
    assert engine.status().groups[0].cached_blocks == 9
    run(engine, Request("other", prompt_of(19, start=50), greedy(1)))
    cached = engine.admit(Request("again", prompt_of(36), greedy(1))).cached_tokens
    assert cached == 28, "two blocks of nine were taken"
