"""Malformed values are refused with the path of the field at fault."""

import math

import pytest

from baton.errors import BatonError, InvalidRequest, LayoutMismatch, LostRace
from baton.naming import Incarnation
from baton.v1 import kv_pb2, sampling_pb2
from engine.types import Limits
from services.worker import validation

LIMITS = Limits(context_tokens=64, vocab_size=100, eos_token_ids=frozenset({1}))
GOOD = {"seed": 7, "max_tokens": 8}


def sampling(**values):
    message = sampling_pb2.SamplingParams(**(GOOD | values))
    return validation.sampling_params("sampling", message, 10, LIMITS)


def test_absent_values_get_their_documented_defaults():
    params = sampling()
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (1.0, 0, 1.0, 0.0)
    assert (params.seed, params.max_tokens, params.min_tokens) == (7, 8, 0)
    assert (params.stop_token_ids, params.ignore_eos, params.logprobs) == (frozenset(), False, None)


def test_given_values_are_taken():
    params = sampling(
        temperature=0.0, top_k=5, top_p=0.5, min_p=0.25, min_tokens=8, stop_token_ids=[3, 4],
        ignore_eos=True, logprobs=0, seed=2**64 - 1, max_tokens=54,
    )  # fmt: skip
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.0, 5, 0.5, 0.25)
    assert (params.seed, params.max_tokens, params.min_tokens) == (2**64 - 1, 54, 8)
    assert (params.stop_token_ids, params.ignore_eos, params.logprobs) == ({3, 4}, True, 0)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("sampling.temperature", {"temperature": math.nan}),
        ("sampling.temperature", {"temperature": math.inf}),
        ("sampling.temperature", {"temperature": -0.1}),
        ("sampling.temperature", {"temperature": 101.0}),
        ("sampling.top_k", {"top_k": 101}),
        ("sampling.top_p", {"top_p": 0.0}),
        ("sampling.top_p", {"top_p": 1.5}),
        ("sampling.top_p", {"top_p": math.nan}),
        ("sampling.min_p", {"min_p": -1.0}),
        ("sampling.min_p", {"min_p": math.nan}),
        ("sampling.max_tokens", {"max_tokens": 0}),
        ("sampling.max_tokens", {"max_tokens": 55}),
        ("sampling.min_tokens", {"min_tokens": 9}),
        ("sampling.stop_token_ids[1]", {"stop_token_ids": [5, 100]}),
        ("sampling.stop_token_ids", {"stop_token_ids": [5] * 65}),
        ("sampling.logprobs", {"logprobs": 21}),
    ],
)
def test_bad_sampling_names_its_field(field, values):
    with pytest.raises(InvalidRequest) as caught:
        sampling(**values)
    assert caught.value.field == field


@pytest.mark.parametrize("missing", ["seed", "max_tokens"])
def test_what_the_router_must_set_is_missed(missing):
    message = sampling_pb2.SamplingParams(**GOOD)
    message.ClearField(missing)
    with pytest.raises(InvalidRequest) as caught:
        validation.sampling_params("sampling", message, 10, LIMITS)
    assert caught.value.field == f"sampling.{missing}"


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
