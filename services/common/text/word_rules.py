"""How byte-level tokenizers cut text into words before merging, by the names GGUF files use.

`tokenizer.ggml.pre` names the rule; the file does not spell it out. The patterns are those of
the published tokenizers that the names stand for.

Knows no vocabulary.
"""

from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from services.common.text.errors import TextModelError

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


@dataclass(frozen=True, slots=True)
class WordRule:
    """How a byte-level tokenizer cuts text into words before merging."""

    patterns: tuple[str, ...] = ()
    """Each cuts what the one before left; none: GPT-2's own."""
    single_digits: bool = False
    """Digits are words of their own; the rest is cut by GPT-2's pattern."""
    whole_words_first: bool = False
    """A word that is a token is taken whole, whatever the merges say."""
    composed: bool = False
    """Text is brought into Unicode's NFC first."""
    adds_bos: bool = False
    """Whether a file that does not say wants its bos token added."""

    def apply(self, tokenizer: Tokenizer) -> None:
        """Makes `tokenizer` normalize and cut text by this rule."""
        if self.composed:
            tokenizer.normalizer = normalizers.NFC()
        steps: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns
        ]
        if self.single_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not self.patterns))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)


def _letters_first(digits: str, letters: str = r"\p{L}") -> str:
    return (
        rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}"
        rf"| ?[^\s{letters.strip('[]')}\p{{N}}]+[\r\n]*|{_SPACES}"
    )


def _by_case(digits: str, endings: str) -> str:
    start = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{start}{_UPPER}*{_LOWER}+{endings}|{start}{_UPPER}+{_LOWER}*{endings}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


_LLAMA3 = WordRule((_letters_first(r"\p{N}{1,3}"),), whole_words_first=True, adds_bos=True)
_LLAMA3_BY_MERGES = WordRule(_LLAMA3.patterns)
_QWEN2 = WordRule((_letters_first(r"\p{N}"),), composed=True)
_QWEN35 = WordRule((_letters_first(r"\p{N}", r"[\p{L}\p{M}]"),), composed=True)
_GPT4O = WordRule((_by_case(r"\p{N}{1,3}", rf"{_ENDINGS}?"),))
_TEKKEN = WordRule((_by_case(r"\p{N}", ""),), whole_words_first=True, adds_bos=True)
_DEEPSEEK3 = WordRule(
    (
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
        r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES,
    )
)
_GPT2 = WordRule()
_SINGLE_DIGITS = WordRule(single_digits=True)

_NAMES = {
    _GPT2: ("default", "gpt-2", "phi-2"),
    WordRule(composed=True): ("mpt", "olmo"),
    _LLAMA3: ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2"),
    _LLAMA3_BY_MERGES: ("dbrx", "smaug-bpe"),
    _QWEN2: ("qwen2", "deepseek-r1-qwen", "megrez"),
    _QWEN35: ("qwen35",),
    _GPT4O: ("gpt-4o", "llama4", "kanana2"),
    _TEKKEN: ("tekken",),
    _DEEPSEEK3: ("deepseek-v3",),
    _SINGLE_DIGITS: ("starcoder", "refact", "smollm", "codeshell", "exaone"),
    WordRule(single_digits=True, composed=True): ("command-r",),
}
_RULES = {name: rule for rule, names in _NAMES.items() for name in names}


def word_rule(name: str) -> WordRule:
    """The rule that `tokenizer.ggml.pre` calls `name`. Raises TextModelError for others."""
    rule = _RULES.get(name)
    if rule is None:
        raise TextModelError(
            f"tokenizer.ggml.pre is {name!r}: supported are {', '.join(sorted(_RULES))}"
        )
    return rule
