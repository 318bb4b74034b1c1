"""Tiny tokenizers of the kinds that models have, and what GGUF files say about them."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gguf
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

CORPUS = [
    "the cat sat on the mat, the other cat didn't: it's 2024 and they're 12345 cats",
    "Once upon a time, in a small village by the sea, there lived a fisherman.",
    "def f(x):\n    return x ** 2\n\n\n\tif x:\r\n        pass",
    "héllo wörld, ça va? 你好世界 你好 🙂🙂 🏳️‍🌈",
]
SPECIAL = ["<|begin|>", "<|end|>"]
PLAIN_ADDED = "<think>"
GPT2 = None
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


@cache
def byte_level(
    words: str | None = GPT2, *, ignore_merges: bool = False, composed: bool = False
) -> Tokenizer:
    """A byte-level BPE tokenizer with all 256 bytes and some merges; ids 0 and 1 are special."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if composed:
        tokenizer.normalizer = normalizers.NFC()
    if words is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(words), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(PLAIN_ADDED, special=False, normalized=False)])
    return tokenizer


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPACE = "\u2581"


@cache
def byte_fallback(prepend: str = "first") -> Tokenizer:
    """A SentencePiece-like BPE tokenizer, trained: <unk>, <s>, </s>, 256 bytes, then merges.

    `prepend`: where a space comes first, as Metaspace names it ("first", "always", "never").
    """
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=prepend, split=True)
    trainer = trainers.BpeTrainer(
        vocab_size=460, special_tokens=["<unk>", "<s>", "</s>", *BYTES], show_progress=False
    )
    tokenizer.train_from_iterator([*CORPUS[:3]] * 2, trainer)
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = state["added_tokens"][:3]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=prepend, split=False)
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prepend != "never":
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_tokens([AddedToken(PLAIN_ADDED, special=False, normalized=False)])
    return tokenizer


@cache
def unigram(*, byte_fallback: bool = False, prepend: str = "always") -> Tokenizer:
    """A Unigram tokenizer, trained: <unk>, <s>, </s>, perhaps 256 bytes, then pieces."""
    head = ["<unk>", "<s>", "</s>", *(BYTES if byte_fallback else ())]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=prepend)
    trainer = trainers.UnigramTrainer(
        vocab_size=len(head) + 150, special_tokens=head, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator([*CORPUS[:3]] * 2, trainer)
    state = json.loads(tokenizer.to_str())
    state["model"]["byte_fallback"] = byte_fallback
    state["added_tokens"] = state["added_tokens"][:3]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    metaspace = decoders.Metaspace(SPACE, prepend_scheme=prepend)
    tokenizer.decoder = (
        decoders.Sequence([decoders.ByteFallback(), metaspace]) if byte_fallback else metaspace
    )
    tokenizer.add_tokens([AddedToken(PLAIN_ADDED, special=False, normalized=False)])
    return tokenizer


def byte_level_metadata(tokenizer: Tokenizer, pre: str) -> dict[str, Any]:
    """What a GGUF file says of a tokenizer made by `byte_level`."""
    state = _model_state(tokenizer)
    tokens = [tokenizer.id_to_token(index) for index in range(tokenizer.get_vocab_size())]
    types = [3 if token in SPECIAL else 4 if token == PLAIN_ADDED else 1 for token in tokens]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(merge) for merge in state["merges"]],
        "tokenizer.ggml.bos_token_id": tokens.index(SPECIAL[0]),
        "tokenizer.ggml.eos_token_id": tokens.index(SPECIAL[1]),
    }


def sentencepiece_metadata(
    pieces: Sequence[str], *, architecture: str = "llama", scores: Sequence[float] | None = None
) -> dict[str, Any]:
    """What a GGUF file says of a SentencePiece BPE: <unk>, <s>, </s>, 256 bytes, then `pieces`,
    the earlier the better unless `scores` says otherwise."""
    head = ["<unk>", "<s>", "</s>"]
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    ranks = list(scores) if scores is not None else [-float(rank) for rank in range(len(pieces))]
    return {
        "general.architecture": architecture,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*head, *fallback, *pieces],
        "tokenizer.ggml.scores": [-1e9] * (len(head) + 256) + ranks,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def byte_fallback_metadata(tokenizer: Tokenizer, architecture: str = "llama") -> dict[str, Any]:
    """What a GGUF file says of a trained SentencePiece-like BPE: its scores are its merges'."""
    state = _model_state(tokenizer)
    size = tokenizer.get_vocab_size()
    pieces = [tokenizer.id_to_token(index) for index in range(3 + 256, size)]
    rank = {left + right: index for index, (left, right) in enumerate(state["merges"])}
    metadata = sentencepiece_metadata(
        pieces,
        architecture=architecture,
        scores=[-float(rank.get(piece, 10_000 + place)) for place, piece in enumerate(pieces)],
    )
    metadata["tokenizer.ggml.token_type"][-1] = 4  # PLAIN_ADDED
    if architecture == "gemma3":
        metadata["tokenizer.ggml.tokens"][-2:] = ["  ", "   "]
        metadata["tokenizer.ggml.token_type"][-2:] = [4, 4]
    return metadata


def write_gguf(path: Path, metadata: dict[str, Any]) -> Path:
    """A GGUF file of `metadata` and no tensors."""
    writer = gguf.GGUFWriter(path, metadata["general.architecture"])
    for key, value in metadata.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case list():
                writer.add_array(key, value)
            case str() if key != "general.architecture":
                writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _model_state(tokenizer: Tokenizer) -> dict[str, Any]:
    return json.loads(tokenizer.to_str())["model"]
