"""Log probabilities in the two shapes that OpenAI has for them."""

import codecs
from collections.abc import Iterable
from typing import Any

from baton import events

_LEAST = -9999.0
"""What stands for a probability of nothing: JSON has no infinity."""


def chat_logprobs(tokens: Iterable[events.Token]) -> dict[str, Any]:
    """Those of a chat's tokens."""
    content = [
        {
            **_entry(token.text, token.logprob or 0.0),
            "top_logprobs": [_entry(top.text, top.logprob) for top in token.top],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _entry(text: bytes, logprob: float) -> dict[str, Any]:
    return {"token": shown(text), "logprob": _number(logprob), "bytes": list(text)}


class TextLogprobs:
    """Those of a completion's tokens, with the place of each in the text. One for each choice."""

    def __init__(self) -> None:
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def prompt(self, tokens: Iterable[events.Token], text: str) -> dict[str, Any]:
        """Those of the prompt, which is `text`."""
        return self._columns(tokens, text)

    def output(self, tokens: Iterable[events.Token]) -> dict[str, Any]:
        """Those of further output."""
        return self._columns(tokens, None)

    def _columns(self, tokens: Iterable[events.Token], text: str | None) -> dict[str, Any]:
        known = list(tokens)
        offsets = [self._place(token, text) for token in known]
        return {
            "tokens": [shown(token.text) for token in known],
            "token_logprobs": [
                None if token.logprob is None else _number(token.logprob) for token in known
            ],
            "top_logprobs": [_top(token) for token in known],
            "text_offset": offsets,
        }

    def _place(self, token: events.Token, text: str | None) -> int:
        place = self._offset
        piece = self._decoder.decode(token.text)
        if text is None or text.startswith(piece, place):  # special tokens are not in the text
            self._offset += len(piece)
        return place


def _top(token: events.Token) -> dict[str, float] | None:
    if token.logprob is None:
        return None
    found = {shown(top.text): _number(top.logprob) for top in token.top}
    return {shown(token.text): _number(token.logprob)} | found


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The columns of several parts as one."""
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return {name: [value for part in parts for value in part[name]] for name in names}


def prompt_logprobs(tokens: Iterable[events.Token]) -> list[dict[str, Any] | None]:
    """Those of the prompt as an extension has them: one entry a token, none for the first."""
    return [
        None
        if token.logprob is None
        else {
            str(one.id): {"logprob": _number(one.logprob or 0.0), "decoded_token": shown(one.text)}
            for one in (*token.top, events.TokenLogprob(token.id, token.logprob, token.text))
        }
        for token in tokens
    ]


def shown(text: bytes) -> str:
    """A token's text; where it is a part of a character, its bytes."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text)


def _number(logprob: float) -> float:
    return max(logprob, _LEAST)
