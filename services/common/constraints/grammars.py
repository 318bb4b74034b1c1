"""Constraints as matchers, made by llguidance.

The one module that knows the library. Its limits are set here, for all processes alike: what a
router accepts, a worker can follow. Making a `TokenTable` holds the interpreter lock for about
1 s of a vocabulary of 262,144; making a matcher and computing masks release it.
"""

import json
from collections.abc import Collection, Sequence

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from services.common.constraints.values import Constraint, Kind

_LIMITS = LLParserLimits(
    max_items_in_row=2_000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=5_000,
    max_lexer_states=50_000,
    max_grammar_size=250_000,
    precompute_large_lexemes=False,
    verbose_errors=False,
)
"""Items bound what one mask takes: 5,000 take some 20 ms with a vocabulary of 262,144, and a batch
waits for them. Schemas with hundreds of properties stay below a thousand."""
_SPACES = r"[\x20\x0A\x0D\x09]{1,40}"
"""Between the parts of a JSON text: a model can't go on with them for ever."""
_TRIED_STEPS = 24
_STRIDE = 7
"""Steps of a check take other tokens than the first, as far as there are any."""
_SHOWN_CHARACTERS = 300


class GrammarError(Exception):
    """The constraint makes no sense, or is more than the limits allow. The message is for who
    made it."""


class TokenTable:
    """A vocabulary as matchers need it. Immutable."""

    def __init__(self, token_bytes: Sequence[bytes], special: Collection[int]) -> None:
        """`token_bytes` by id, empty for ids that add nothing to a text, all `special` ones
        among them. Of tokens that add the same, only the last is ever allowed."""
        self.size = size = len(token_bytes)
        ids = {data: index for index, data in enumerate(token_bytes) if data}
        # Not of the model, and cut off its masks: the text's end, then bytes that no token is.
        lacking = [byte for byte in map(_byte, range(256)) if byte not in ids]
        ids.update({byte: size + 1 + index for index, byte in enumerate(lacking)})
        named = {f"<|special_{index}|>": index for index in special} | {"<|end|>": size}
        # Its tokenizer, which tells how forced text may be written, asks nobody for the
        # interpreter lock; merging in the order of ids is what most tokenizers do.
        self._tokenizer = LLTokenizer.from_tiktoken(  # type: ignore[attr-defined]
            encoder=ids,
            special_tokens=named,
            pattern=r"(?s).+",
            eos_token=size,
            n_vocab=size + 1 + len(lacking),
            slices=None,
        )

    @classmethod
    def of_bytes(cls) -> "TokenTable":
        """Every byte is a token: enough to see whether a constraint makes sense."""
        return cls([_byte(value) for value in range(256)], ())

    def matcher(self, constraint: Constraint) -> LLMatcher:
        """A matcher at the beginning of a text. Raises GrammarError."""
        matcher = LLMatcher(self._tokenizer, _grammar(constraint), log_level=0, limits=_LIMITS)
        _raise_error(matcher)
        return matcher

    def allowed(self, matcher: LLMatcher) -> bytearray:
        """The tokens that may follow: bit t % 8 of byte t // 8, whole 32-bit words. Raises
        GrammarError where the limits end it, or no text can come any more."""
        bits = bytearray(matcher.compute_bitmask())
        _raise_error(matcher)
        del bits[(self.size + 31) // 32 * 4 :]
        for token in range(self.size, len(bits) * 8):
            bits[token // 8] &= ~(1 << token % 8)
        return bits

    def check(self, constraint: Constraint) -> None:
        """Raises GrammarError where `matcher` does, where no text can come of it, and where
        the limits end one of its first steps."""
        matcher = self.matcher(constraint)
        bits = self.allowed(matcher)
        if not any(bits):
            raise GrammarError("the empty text alone is of it")
        for step in range(_TRIED_STEPS):
            tokens = [t for t in range(self.size) if bits[t // 8] >> t % 8 & 1]
            if not tokens:
                return
            matcher.consume_token(tokens[step * _STRIDE % len(tokens)])
            _raise_error(matcher)
            if matcher.is_stopped():
                return
            bits = self.allowed(matcher)


def _byte(value: int) -> bytes:
    return bytes([value])


def _raise_error(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise GrammarError(shown(matcher.get_error()))


def shown(error: str) -> str:
    """The library's words for a person: what is wrong, without the parser's insides."""
    told = error.split("\n<state>")[0].split("<non-verbose/>")[0].strip()
    if told.startswith("NoExtension"):
        return "no text is of it"
    return told if len(told) <= _SHOWN_CHARACTERS else f"{told[:_SHOWN_CHARACTERS]}..."


def _grammar(constraint: Constraint) -> str:
    match constraint.kind:
        case Kind.JSON_SCHEMA:
            return _of_schema(constraint.text)
        case Kind.JSON_OBJECT:
            return _of_schema('{"type": "object"}')
        case Kind.REGEX:
            return LLMatcher.grammar_from_regex(constraint.text)
        case Kind.GRAMMAR:
            return LLMatcher.grammar_from_lark(constraint.text)
        case Kind.CHOICE:
            texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in constraint.texts)
            return LLMatcher.grammar_from_lark(f"start: {texts}")


def _of_schema(text: str) -> str:
    try:
        schema = json.loads(text)
        if schema is False:
            raise GrammarError("no text is of it")
        if schema is True:
            text = "{}"
        elif not isinstance(schema, dict):
            raise GrammarError("must be a JSON object, or true or false")
        return LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_pattern": _SPACES})
    except RecursionError:
        raise GrammarError("is nested too deeply") from None
    except ValueError as error:
        raise GrammarError(f"is not valid JSON: {error}") from None
