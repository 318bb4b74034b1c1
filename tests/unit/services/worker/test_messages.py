"""Engine values keep their meaning on the wire."""

import pytest

from baton.naming import BlobName
from baton.v1 import sampling_pb2
from engine.types import BlockRef, FinishReason, SampledToken
from services.worker import messages


def test_log_probabilities_are_there_only_when_asked_for():
    plain = messages.sampled_token(SampledToken(7))
    assert (plain.token_id, plain.HasField("logprob")) == (7, False)
    rich = messages.sampled_token(SampledToken(7, -0.5, ((9, -0.25), (7, -0.5))))
    assert rich.logprob == -0.5
    assert [(top.token_id, top.logprob) for top in rich.top_logprobs] == [(9, -0.25), (7, -0.5)]


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        (None, "FINISH_REASON_UNSPECIFIED"),
        (FinishReason.HANDOVER, "FINISH_REASON_UNSPECIFIED"),
        (FinishReason.STOP, "FINISH_REASON_STOP"),
        (FinishReason.LENGTH, "FINISH_REASON_LENGTH"),
    ],
)
def test_finish_reasons(reason, name):
    assert sampling_pb2.FinishReason.Name(messages.finish_reason(reason)) == name


def test_a_manifest_lists_blobs_by_group_then_index():
    blocks = [
        BlockRef(BlobName(bytes([number]) * 16), group, index, 40 + number, used)
        for number, (group, index, used) in enumerate([(1, 2, 3), (0, 1, 4), (1, 1, 4), (0, 0, 4)])
    ]
    listed = [(b.group, b.block_index, b.used_tokens) for b in messages.blob_refs(blocks)]
    assert listed == [(0, 0, 4), (0, 1, 4), (1, 1, 4), (1, 2, 3)]
    assert {b.name for b in messages.blob_refs(blocks)} == {b.name for b in blocks}
    manifest = messages.manifest("layout", 11, blocks, "host:1")
    assert list(manifest.blobs) == messages.blob_refs(blocks)
    assert (manifest.layout_fingerprint, manifest.length_tokens, manifest.transfer_address) == (
        "layout", 11, "host:1",
    )  # fmt: skip


def test_attempts_of_a_request_have_keys_of_their_own():
    assert messages.sequence_key("r", 1) != messages.sequence_key("r", 0)
