"""Each verdict, over a snapshot made by hand that shows it and nothing else."""

import json

import pytest

from baton import errors
from baton.doctor.diagnosis import Verdict, diagnose
from baton.doctor.finding import Severity
from baton.doctor.picture import Wanted
from baton.doctor.snapshot import Snapshot, take
from baton.doctor.text import bar, render
from baton.v1 import inference_pb2
from services.common.durations import to_duration
from tests.support.snapshots import fleet, phase, report, snapshot, transfer, worker

DECODING = phase("decode", steps=900, busy=6.0, sequences=900, context=90_000)
PREFILLING = phase("prefill", steps=100, busy=4.0, prompt=20_000)


def found(*args, wanted=None, **kwargs):
    diagnosis = diagnose(snapshot(*args, **kwargs), wanted or Wanted())
    return diagnosis, {finding.code: finding for finding in diagnosis.findings}


def busy_fleet(prefill=PREFILLING, decode=DECODING, *, prefill_says=None, decode_says=None, **more):
    """One worker of each role with the steps of one phase each."""
    return fleet(
        [
            worker("prefill-0", phases=[prefill], **(prefill_says or {})),
            worker("decode-0", phases=[decode], **(decode_says or {})),
        ],
        **more,
    )


def late(count=10, **parts):
    return [report(number, ttft_target=0.05, **parts) for number in range(count)]


def slow(count=10, **parts):
    return [
        report(number, **({"itl": 0.05, "itl_target": 0.02} | parts)) for number in range(count)
    ]


def test_nothing_ran():
    diagnosis, codes = found()
    assert diagnosis.verdict is Verdict.IDLE
    assert not codes
    assert "ask again while requests run" in diagnosis.summary


def test_all_is_well():
    diagnosis, codes = found(busy_fleet(), [report(number) for number in range(20)])
    assert diagnosis.verdict is Verdict.HEALTHY, codes
    assert not codes
    assert "68 ms to the first token, 10 ms between tokens" in diagnosis.summary


def test_few_late_ones_are_no_problem():
    requests = [*late(1), *(report(number) for number in range(1, 20))]
    diagnosis, _ = found(busy_fleet(), requests)
    assert diagnosis.verdict is Verdict.HEALTHY


FIRST_TOKEN = [
    ("first_token.queue", {"queue": 1.0}, {"prefill": phase("prefill", busy=9.5)}),
    ("first_token.prefill_room", {"queue": 1.0}, {"prefill": phase("prefill", busy=2.0)}),
    (
        "first_token.decode_room",
        {"queue": 1.0},
        {"decode_says": {"record": {"load": {"sequence_limit": 4}, "running": {"sequences": 4}}}},
    ),
    ("first_token.prefill_compute", {"computing": 1.0}, {}),
    ("first_token.transfer", {"waiting": 1.0}, {}),
    ("first_token.publishing", {"publishing": 1.0}, {}),
    ("first_token.elsewhere", {"other": 1.0}, {}),
]


@pytest.mark.parametrize(
    ("code", "parts", "state"), FIRST_TOKEN, ids=[one[0] for one in FIRST_TOKEN]
)
def test_the_first_token_is_late(code, parts, state):
    diagnosis, codes = found(busy_fleet(**state), late(**parts))
    assert list(codes) == [code]
    assert diagnosis.verdict is Verdict.PROBLEM
    assert diagnosis.summary == codes[code].title
    assert codes[code].evidence
    assert any("`" in line for line in codes[code].advice) or code == "first_token.elsewhere"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # It was warm until then.
        (
            fleet([worker("prefill-0", cached_tokens=900, prefilled_tokens=100)]),
            fleet([worker("prefill-0", cached_tokens=900, prefilled_tokens=9_000)]),
        ),
        # What was cached had to go.
        (fleet(), fleet(transfers=[transfer(evicted_blobs=40)])),
    ],
)
def test_the_cache_is_cold(before, after):
    _, codes = found(after, late(computing=1.0, cached=20), before=before)
    assert list(codes) == ["first_token.cache_misses"]
    assert "2% of their prompt tokens were cached" in " ".join(
        codes["first_token.cache_misses"].evidence
    )


def test_warm_prompts_that_take_long_are_no_cold_cache():
    before = fleet([worker("prefill-0", cached_tokens=900, prefilled_tokens=100)])
    _, codes = found(before, late(computing=1.0, cached=800), before=before)
    assert list(codes) == ["first_token.prefill_compute"]


def test_a_queue_of_which_nobody_came_out_yet():
    queue = {"waiting": 40, "queued_work": to_duration(30.0)}
    after = busy_fleet(phase("prefill", busy=9.9), queue=queue)
    _, codes = found(after, earlier=[report()])
    assert "40 requests wait" in codes["first_token.queue"].evidence[0]
    short = busy_fleet(phase("prefill", busy=9.9), queue=queue | {"queued_work": to_duration(1.0)})
    assert not found(short, earlier=[report()])[1]


def batch(sequences, step_s, *, context=100, kind="decode"):
    """A hundred steps of so many sequences."""
    return phase(
        kind,
        steps=100,
        busy=100 * step_s,
        sequences=100 * sequences,
        context=100 * sequences * context,
        moved=100 * step_s * 8e9,
        prompt=100 * 64 if kind == "mixed" else 0,
    )


LONG_CONTEXTS = {"cost": {"context_token_seconds": 2e-6, "sequence_seconds": 1e-5}}
STREAM = [
    ("stream.batch_size", {}, batch(32, 0.025), {}),
    ("stream.context", {}, batch(2, 0.045, context=10_000), LONG_CONTEXTS),
    ("stream.bandwidth", {}, batch(1, 0.05), {"cost": {"base_seconds": 0.05}}),
    (
        "stream.overhead",
        {},
        phase("decode", steps=100, busy=5.0, sequences=100, context=1000, moved=1e8),
        {"cost": {"base_seconds": 0.05}},
    ),
    ("stream.prompts", {}, batch(4, 0.05, kind="mixed"), {}),
    ("stream.transfer", {"gap": 0.4, "fetching": 0.35}, DECODING, {}),
    ("stream.transfer", {"gap": 0.4, "missing": 100}, DECODING, {}),
    ("stream.handoff", {"gap": 0.4}, DECODING, {}),
    ("stream.delivery", {}, DECODING, {}),
]


@pytest.mark.parametrize(("code", "parts", "steps", "says"), STREAM, ids=[one[0] for one in STREAM])
def test_the_stream_is_slow(code, parts, steps, says):
    diagnosis, codes = found(busy_fleet(decode=steps, decode_says=says), slow(**parts))
    assert list(codes) == [code]
    assert diagnosis.verdict is Verdict.PROBLEM


def test_a_batch_that_would_fit_is_told():
    _, codes = found(busy_fleet(decode=batch(32, 0.025)), slow())
    # 5 ms, and 0.51 ms for each sequence of 100 tokens, of 20 ms.
    assert "decode:--max-sequences=29`" in codes["stream.batch_size"].advice[1]


def test_a_cost_that_is_not_reliable_is_not_asked():
    says = {"cost": {"base_seconds": 1.0, "relative_error": 0.9}}
    _, codes = found(busy_fleet(decode=batch(32, 0.025), decode_says=says), slow())
    assert set(codes) == {"stream.batch_size", "fleet.cost_unreliable"}


def test_running_streams_are_judged_where_none_has_ended():
    says = {"record": {"load": {"itl_target": to_duration(0.01)}}}
    _, codes = found(busy_fleet(decode=batch(32, 0.025), decode_says=says))
    assert list(codes) == ["stream.batch_size"]


@pytest.mark.parametrize(
    ("preempted", "requests", "severity"),
    [
        (8, slow(migrations=1), Severity.PROBLEM),
        (1, [report(number) for number in range(20)], Severity.WARNING),
        (30, [report(number) for number in range(20)], Severity.PROBLEM),
    ],
)
def test_blocks_ran_out(preempted, requests, severity):
    diagnosis, codes = found(busy_fleet(decode_says={"preempted_sequences": preempted}), requests)
    assert list(codes) == ["stream.preemption"]
    assert codes["stream.preemption"].severity is severity
    assert (diagnosis.verdict is Verdict.PROBLEM) == (severity is Severity.PROBLEM)


FLEET = [
    ("fleet.workers_missing", fleet([worker("prefill-0"), worker("decode-0", error="GONE")])),
    ("fleet.workers_missing", fleet([worker("prefill-0")])),
    ("fleet.degraded", fleet(queue={"degraded": "no decode worker lives"})),
    ("fleet.redis_away", fleet(queue={"redis_available": False})),
    ("fleet.refused", fleet(refused_requests=5, completed_requests=20)),
    ("fleet.failed", fleet(failed_requests=5, completed_requests=20)),
    ("transfer.corrupt", fleet(transfers=[transfer(corrupt_blobs=1)])),
    (
        "transfer.silent",
        fleet(transfers=[inference_pb2.FleetTransfer(address="t:1", error="UNAVAILABLE")]),
    ),
    (
        "transfer.given_up",
        fleet(
            [worker("prefill-0"), worker("decode-0", transfer_given_up=2, recomputed_handoffs=3)]
        ),
    ),
    ("transfer.drift", fleet([worker("prefill-0"), worker("decode-0", canary_drift=3.0)])),
]


@pytest.mark.parametrize(("code", "after"), FLEET)
def test_the_fleet_is_broken(code, after):
    diagnosis, codes = found(after)
    assert list(codes) == [code]
    assert diagnosis.verdict is Verdict.PROBLEM


def test_no_workers_at_all():
    _, codes = found(fleet([]), before=fleet([]))
    assert list(codes) == ["fleet.no_workers"]


@pytest.mark.parametrize(
    ("code", "after"),
    [
        ("fleet.refused", fleet(refused_requests=1, completed_requests=99)),
        ("fleet.limited", fleet(limited_requests=1)),
        (
            "transfer.given_up",
            fleet([worker("prefill-0"), worker("decode-0", transfer_given_up=1)]),
        ),
        (
            "fleet.cost_unreliable",
            busy_fleet(decode_says={"cost": {"relative_error": 0.8}}),
        ),
        ("fleet.restarted", busy_fleet(decode_says={"record": {"incarnation": "2"}})),
    ],
)
def test_what_nobody_suffers_from_is_no_problem(code, after):
    diagnosis, codes = found(after)
    assert list(codes) == [code]
    assert diagnosis.verdict is not Verdict.PROBLEM


def test_a_restarted_worker_counts_from_its_start():
    before = fleet([worker("decode-0", phases=[phase("decode", steps=5000, busy=50.0)])])
    after = fleet(
        [worker("decode-0", phases=[phase("decode", steps=10)], record={"incarnation": "2"})]
    )
    diagnosis, _ = found(after, before=before)
    assert diagnosis.workers[0].phases[0].steps == 10


def test_the_worst_comes_first():
    after = busy_fleet(queue={"redis_available": False}, limited_requests=1)
    diagnosis, _ = found(after, late(computing=1.0))
    assert [one.severity for one in diagnosis.findings] == [2, 2, 1]
    assert diagnosis.findings[0].code == "first_token.prefill_compute"


def test_wanted_latencies_go_before_targets():
    requests = [report(number) for number in range(10)]
    assert found(busy_fleet(), requests)[0].verdict is Verdict.HEALTHY
    _, codes = found(busy_fleet(), requests, wanted=Wanted(ttft_s=0.01))
    assert list(codes) == ["first_token.prefill_compute"]
    _, codes = found(busy_fleet(decode=batch(30, 0.02)), requests, wanted=Wanted(itl_s=0.009))
    assert list(codes) == ["stream.batch_size"]


@pytest.mark.parametrize(
    ("work", "bound"),
    [
        (phase("prefill", busy=1.0, flops=8e11, moved=1e9), "compute"),
        (phase("decode", busy=1.0, flops=8e9, moved=8e9), "bandwidth"),
        (phase("decode", busy=1.0, flops=1e9, moved=1e9), "overhead"),
    ],
)
def test_rates_against_the_peaks(work, bound):
    diagnosis, _ = found(fleet([worker("decode-0", phases=[work])]), before=fleet([]))
    [rates] = diagnosis.workers[0].phases
    assert rates.bound.value == bound
    assert rates.compute == pytest.approx(work.flops / 1e12)
    assert rates.bandwidth == pytest.approx(work.bytes / 1e10)
    assert rates.ridge == 100
    assert rates.busy == 0.1


def test_unmeasured_devices_have_rates_and_no_bound():
    after = fleet([worker("decode-0", phases=[DECODING], peaks=None)])
    [rates] = found(after, before=fleet([]))[0].workers[0].phases
    assert rates.bound.value == "unknown"
    assert "peaks" not in rates.words


def test_the_text_says_the_verdict_first_and_where_the_time_goes():
    diagnosis, _ = found(busy_fleet(), late(queue=0.6, computing=1.0))
    lines = render(diagnosis).splitlines()
    assert lines[0].startswith("problem: First tokens are late")
    assert any("--prefill 2" in line for line in lines)
    [drawn] = [line.strip() for line in lines if line.startswith("  [")]
    assert len(drawn) == 62
    assert drawn.count("C") == pytest.approx(60 * 1.0 / 1.708, abs=1)
    assert "q queue 600 ms (35%)" in render(diagnosis)
    assert any("decode-0 decode: busy 60%" in line for line in lines)


def test_a_bar_is_as_wide_as_it_is_told():
    parts = (("queue", 1.0), ("compute", 0.0), ("decode", 2.0))
    assert bar(parts, 9) == "qqqDDDDDD"
    assert len(bar((("queue", 1.0), ("wait", 1.0), ("decode", 5.0)), 10)) == 10


def test_json_has_all_of_it():
    diagnosis, _ = found(busy_fleet(), late(computing=1.0))
    value = json.loads(json.dumps(diagnosis.to_json()))
    assert value["verdict"] == "problem"
    assert value["findings"][0]["severity"] == "problem"
    assert value["parts"]["compute"] == pytest.approx(1.0)
    assert value["workers"][1]["phases"][0]["bound"] == "overhead"


def test_a_snapshot_can_be_kept(tmp_path):
    taken = snapshot(busy_fleet(), late(computing=1.0), earlier=[report()])
    path = tmp_path / "seen.json"
    path.write_text(taken.to_json())
    again = Snapshot.read(path)
    assert again == taken
    assert diagnose(again) == diagnose(taken)
    later = json.loads(path.read_text()) | {"new": 1}
    later["after"]["unheardOf"] = {"a": 1}
    assert Snapshot.from_json(json.dumps(later)) == taken


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"seconds": 1}', '{"seconds": "x"}', "null"])
def test_what_is_no_snapshot_is_refused(text, tmp_path):
    path = tmp_path / "seen.json"
    path.write_text(text)
    with pytest.raises(errors.InvalidRequest, match="snapshot"):
        Snapshot.read(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(errors.InvalidRequest, match="can't be read"):
        Snapshot.read(tmp_path / "nothing")


class ScriptedRouter:
    """Ended one request before the snapshot and two in it."""

    def __init__(self):
        self.reports = [report(1)]
        self.fleets = 0

    def fleet(self):
        self.fleets += 1
        return fleet(completed_requests=self.fleets)

    def requests(self, after=0, limit=0):
        return inference_pb2.ListRequestsResponse(
            requests=self.reports[after:], sequence=len(self.reports)
        )


def test_a_snapshot_has_what_ended_in_between():
    router = ScriptedRouter()
    now = iter((100.0, 103.5))
    taken = take(
        router,
        3.0,
        sleep=lambda _: router.reports.extend([report(2), report(3)]),
        clock=lambda: next(now),
    )
    assert taken.seconds == 3.5
    assert [one.request_id for one in taken.requests] == ["r-2", "r-3"]
    assert [one.request_id for one in taken.earlier] == ["r-1"]
    assert taken.after.router.completed_requests == 2
