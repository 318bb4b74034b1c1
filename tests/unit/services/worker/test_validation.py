"""Malformed values are refused with the path of the field at fault."""

import pytest
from google.protobuf import duration_pb2

from baton.errors import BatonError, InvalidRequest, LayoutMismatch, LostRace
from baton.naming import Incarnation
from baton.v1 import decode_pb2, kv_pb2
from engine.types import Limits
from services.common.durations import to_duration
from services.worker import validation

LIMITS = Limits(context_tokens=64, vocab_size=100, eos_token_ids=frozenset({1}))


@pytest.mark.parametrize(
    ("field", "ids"),
    [("prompt", []), ("prompt[2]", [1, 99, 100, 2**32 - 1]), ("prompt", [1] * 64)],
)
def test_bad_prompts_name_their_field(field, ids):
    with pytest.raises(InvalidRequest) as caught:
        validation.prompt_ids("prompt", ids, LIMITS)
    assert caught.value.field == field


def test_the_longest_prompt_leaves_room_for_one_token():
    assert len(validation.prompt_ids("prompt", [99] * 63, LIMITS)) == 63


def test_emitted_tokens_must_leave_one_to_go():
    assert validation.emitted_ids("emitted", [5, 6], 3, LIMITS) == (5, 6)
    for ids, field in (([5, 6, 7], "emitted"), ([5, 100], "emitted[1]")):
        with pytest.raises(InvalidRequest) as caught:
            validation.emitted_ids("emitted", ids, 3, LIMITS)
        assert caught.value.field == field


def test_choices_have_a_limit_and_a_default():
    assert [validation.choices("choices", count) for count in (0, 1, 128)] == [1, 1, 128]
    with pytest.raises(InvalidRequest, match="choices"):
        validation.choices("choices", 129)


@pytest.mark.parametrize("request_id", ["", "r" * 129])
def test_request_ids_have_a_length(request_id):
    with pytest.raises(InvalidRequest):
        validation.check_request_id(request_id)
    validation.check_request_id("r" * 128)


def test_leases_salts_and_blob_names_have_lengths():
    checks = [
        (lambda: validation.check_lease_id("lease_id", ""), "lease_id"),
        (lambda: validation.check_lease_id("lease_id", "x" * 129), "lease_id"),
        (lambda: validation.check_salt("tenant_salt", b"x" * 65), "tenant_salt"),
        (
            lambda: validation.check_manifest(
                "manifest",
                kv_pb2.Manifest(blobs=[kv_pb2.BlobRef(name=b"x" * 16), kv_pb2.BlobRef(name=b"x")]),
            ),
            "manifest.blobs[1].name",
        ),
    ]
    for check, field in checks:
        with pytest.raises(InvalidRequest) as caught:
            check()
        assert caught.value.field == field


def test_another_incarnation_or_layout_is_refused_naming_both():
    ours = Incarnation("inc-ours")
    validation.check_incarnation("", ours)
    validation.check_incarnation("inc-ours", ours)
    validation.check_fingerprint("", "ours")
    for check, kind in (
        (lambda: validation.check_incarnation("inc-theirs", ours), LostRace),
        (lambda: validation.check_fingerprint("theirs", "ours"), LayoutMismatch),
    ):
        with pytest.raises(BatonError, match=r"theirs.*ours") as caught:
            check()
        assert isinstance(caught.value, kind)


@pytest.mark.parametrize(("seconds", "expected"), [(None, None), (0.25, 0.25), (2, 2.0)])
def test_a_latency_target_is_optional(seconds, expected):
    message = decode_pb2.DecodeRequest(itl_target=None if seconds is None else to_duration(seconds))
    assert validation.target_s("itl_target", message) == expected


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_latency_target_is_above_zero(seconds):
    target = duration_pb2.Duration(seconds=seconds)
    with pytest.raises(InvalidRequest) as caught:
        validation.target_s("itl_target", decode_pb2.DecodeRequest(itl_target=target))
    assert caught.value.field == "itl_target"
