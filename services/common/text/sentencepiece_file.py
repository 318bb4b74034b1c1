"""Reads SentencePiece's own file, tokenizer.model: a protocol buffer.

The message is described here, as far as it is needed, rather than generated: its schema is
SentencePiece's (sentencepiece_model.proto), and none of Baton's wire.

Knows nothing of what its contents mean (`sentencepiece`).
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from services.common.text.errors import TextModelError
from services.common.text.sentencepiece import SentencePiece

_UNIGRAM, _BPE = 1, 2
_CONTROL = 3
_Field = descriptor_pb2.FieldDescriptorProto
_STRING, _FLOAT, _INT = _Field.TYPE_STRING, _Field.TYPE_FLOAT, _Field.TYPE_INT32
_BOOL, _BYTES, _MESSAGE = _Field.TYPE_BOOL, _Field.TYPE_BYTES, _Field.TYPE_MESSAGE
_SCHEMA: dict[str, list[tuple[str, int, _Field.Type.ValueType, str]]] = {
    "Piece": [("piece", 1, _STRING, ""), ("score", 2, _FLOAT, "0"), ("type", 3, _INT, "1")],
    "Trainer": [
        ("model_type", 3, _INT, "1"),
        ("byte_fallback", 35, _BOOL, "false"),
        ("unk_id", 40, _INT, "0"),
        ("bos_id", 41, _INT, "1"),
        ("eos_id", 42, _INT, "2"),
        ("pad_id", 43, _INT, "-1"),
    ],
    "Normalizer": [
        ("charsmap", 2, _BYTES, ""),
        ("add_dummy_prefix", 3, _BOOL, "true"),
        ("remove_extra_whitespaces", 4, _BOOL, "true"),
    ],
    "Model": [
        ("pieces", 1, _MESSAGE, "Piece"),
        ("trainer", 2, _MESSAGE, "Trainer"),
        ("normalizer", 3, _MESSAGE, "Normalizer"),
    ],
}


@dataclass(frozen=True, slots=True)
class SentencePieceFile:
    """What tokenizer.model holds."""

    model: SentencePiece
    special_tokens: dict[str, str]
    """By name: bos_token, eos_token, unk_token, pad_token, as far as the file has them."""

    def special(self) -> list[str]:
        """Every special token: the control ones, and those that have a name."""
        pieces = zip(self.model.tokens, self.model.types, strict=True)
        control = [token for token, kind in pieces if kind == _CONTROL]
        return [*control, *self.special_tokens.values()]


def read(path: Path, *, prefix_every_part: bool) -> SentencePieceFile:
    """Reads the file at `path`. Raises TextModelError, which names it.

    `prefix_every_part` is not in the file: see `SentencePiece`.
    """
    proto = _message_class()()
    try:
        proto.ParseFromString(path.read_bytes())
    except (OSError, message.DecodeError) as error:
        raise TextModelError(f"{path}: is not a SentencePiece model: {error}") from None
    if not proto.pieces:
        raise TextModelError(f"{path}: is not a SentencePiece model: it has no pieces")
    trainer, normalizer = proto.trainer, proto.normalizer
    if trainer.model_type not in (_UNIGRAM, _BPE):
        raise TextModelError(
            f"{path}: is neither BPE nor Unigram, but model_type {trainer.model_type}"
        )
    tokens = [piece.piece for piece in proto.pieces]
    model = SentencePiece(
        tokens=tokens,
        scores=[piece.score for piece in proto.pieces],
        types=[piece.type for piece in proto.pieces],
        is_unigram=trainer.model_type == _UNIGRAM,
        unknown_id=trainer.unk_id,
        byte_fallback=trainer.byte_fallback,
        charsmap=normalizer.charsmap,
        space_prefix=normalizer.add_dummy_prefix,
        prefix_every_part=prefix_every_part,
        strip_spaces=normalizer.remove_extra_whitespaces,
    )
    ids = {name: getattr(trainer, f"{name}_id") for name in ("bos", "eos", "unk", "pad")}
    special = {
        f"{name}_token": tokens[index] for name, index in ids.items() if 0 <= index < len(tokens)
    }
    return SentencePieceFile(model, special)


@cache
def _message_class() -> Any:
    package = "baton.sentencepiece"
    file = descriptor_pb2.FileDescriptorProto(
        name="sentencepiece_model.proto", package=package, syntax="proto2"
    )
    for name, fields in _SCHEMA.items():
        described = file.message_type.add(name=name)
        for field, number, kind, detail in fields:
            label = _Field.LABEL_REPEATED if field == "pieces" else _Field.LABEL_OPTIONAL
            added = described.field.add(name=field, number=number, type=kind, label=label)
            if kind == _MESSAGE:
                added.type_name = f".{package}.{detail}"
            elif detail:
                added.default_value = detail
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Model"))
