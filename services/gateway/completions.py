"""/v1/completions: one or several prompts, continued."""

import time
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, cast

from baton import events
from baton.client import AsyncClient, GenerateOptions
from services.common.merge import merged
from services.gateway.answering import in_terms_of
from services.gateway.caller import Caller
from services.gateway.errors import Names, bad
from services.gateway.fields import MAX_PROMPTS
from services.gateway.generation import Generation
from services.gateway.logprobs import TextLogprobs, joined, prompt_logprobs
from services.gateway.options import constraint_names, shared_options
from services.gateway.schemas import CompletionRequest
from services.gateway.sse import DONE, Chunks, event
from services.gateway.usage import account_of, usage_of


class Completion:
    """One request, carried out once: as one answer, or as a stream."""

    def __init__(
        self, client: AsyncClient, body: CompletionRequest, model: str, caller: Caller
    ) -> None:
        """Raises HttpError where it can never work."""
        self._body = body
        self._n = body.n or 1
        self._scoring = body.max_tokens == 0
        _check(body, self._n)
        options = _options(body, caller)
        prompts = body.prompt
        self._generations = [
            Generation(client, cast(Any, prompt), _numbered(options, caller, number, len(prompts)))
            for number, prompt in enumerate(prompts)
        ]
        self._frame = {
            "id": f"cmpl-{caller.request_id}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }

    @property
    def explanations(self) -> list[str]:
        """What became of each prompt's generation, in words."""
        return [generation.explanation for generation in self._generations]

    async def answer(self) -> dict[str, Any]:
        """All of it."""
        texts: defaultdict[int, _Text] = defaultdict(_Text)
        ended: dict[int, events.Completed] = {}
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                if piece.ended is not None:
                    ended[piece.choice // self._n] = piece.ended
                texts[piece.choice].add(piece)
        choices = [texts[index].choice(index) for index in range(len(ended) * self._n)]
        usage = usage_of(ended.values(), generated=not self._scoring)
        return {**self._frame, "choices": choices, "usage": usage, "baton": account_of(ended[0])}

    async def chunks(self) -> Chunks:
        """A stream of it."""
        wanted = self._body.stream_options and self._body.stream_options.include_usage
        extra: dict[str, Any] = {"usage": None} if wanted else {}
        ended: dict[int, events.Completed] = {}
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                if piece.ended is not None:
                    ended[piece.choice // self._n] = piece.ended
                if piece.text or piece.logprobs or piece.finish_reason:
                    yield event({**self._frame, "choices": [piece.shown()], **extra})
        account = {"baton": account_of(ended[0])}
        if wanted:
            usage = usage_of(ended.values(), generated=not self._scoring)
            yield event({**self._frame, "choices": [], "usage": usage, **account})
        yield DONE

    def _pieces(self) -> "AsyncGenerator[_Piece, None]":
        return merged([self._pieces_of(number) for number in range(len(self._generations))])

    async def _pieces_of(self, prompt: int) -> "AsyncGenerator[_Piece, None]":
        places = [TextLogprobs() for _ in range(self._n)]
        stream = in_terms_of(self._generations[prompt].stream(), self._names(prompt))
        async with aclosing(stream):
            async for one in stream:
                for piece in self._of(prompt, one, places):
                    yield piece

    def _of(self, prompt: int, one: events.Event, places: list[TextLogprobs]) -> "list[_Piece]":
        first = prompt * self._n
        match one:
            case events.PromptEcho():
                return [self._echo(first + index, one, place) for index, place in enumerate(places)]
            case events.Delta():
                if self._scoring:
                    return []
                wanted = self._body.logprobs is not None and one.tokens
                logprobs = places[one.choice].output(one.tokens) if wanted else None
                return [_Piece(first + one.choice, one.text, logprobs)]
            case events.Completed():
                reason = "length" if self._scoring else ""
                return [
                    _Piece(
                        first + ended.index,
                        finish_reason=reason or str(ended.finish_reason),
                        stop_reason=ended.stop_string,
                        ended=one,
                    )
                    for ended in one.choices
                ]

    def _echo(self, choice: int, echo: events.PromptEcho, places: TextLogprobs) -> "_Piece":
        asked = self._body.prompt_logprobs is not None
        piece = _Piece(choice, prompt=prompt_logprobs(echo.tokens) if asked else None)
        if self._body.echo:
            piece.text = echo.text
            if self._body.logprobs is not None:
                piece.logprobs = places.prompt(echo.tokens, echo.text)
        return piece

    def _names(self, number: int) -> Names:
        prompt = "prompt" if len(self._generations) == 1 else f"prompt[{number}]"
        return (
            ("text", prompt),
            ("token_ids.ids", prompt),
            ("token_ids", prompt),
            *constraint_names(self._body, "structured_outputs"),
        )


@dataclass(slots=True)
class _Piece:
    """A part of one choice; choices are numbered over all prompts."""

    choice: int
    text: str = ""
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    stop_reason: str | None = None
    prompt: list[dict[str, Any] | None] | None = None
    ended: events.Completed | None = None

    def shown(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "index": self.choice,
            "text": self.text,
            "logprobs": self.logprobs,
            "finish_reason": self.finish_reason,
        }
        if self.finish_reason:
            found["stop_reason"] = self.stop_reason
        if self.prompt is not None:
            found["prompt_logprobs"] = self.prompt
        return found


@dataclass(slots=True)
class _Text:
    """All parts of one choice."""

    parts: list[_Piece] = field(default_factory=list)

    def add(self, piece: _Piece) -> None:
        self.parts.append(piece)

    def choice(self, index: int) -> dict[str, Any]:
        columns = [part.logprobs for part in self.parts if part.logprobs is not None]
        prompts = [part.prompt for part in self.parts if part.prompt is not None]
        whole = _Piece(
            index,
            "".join(part.text for part in self.parts),
            joined(columns) if columns else None,
            self.parts[-1].finish_reason,
            self.parts[-1].stop_reason,
            prompts[0] if prompts else None,
        )
        return whole.shown()


def _check(body: CompletionRequest, n: int) -> None:
    if body.suffix:
        raise bad("suffix", "is not supported: prompts are continued at their end")
    if body.best_of is not None and body.best_of != n:
        raise bad("best_of", f"must be n, which is {n}: all choices drawn are returned")
    if len(body.prompt) * n > MAX_PROMPTS:
        raise bad("prompt", f"{len(body.prompt)} prompts of {n} choices are over {MAX_PROMPTS}")
    if body.max_tokens == 0 and not body.echo:
        raise bad("max_tokens", "0 is only for scoring a prompt, with echo")


def _options(body: CompletionRequest, caller: Caller) -> GenerateOptions:
    options = shared_options(body, caller.metadata())
    options["max_tokens"] = max(1, body.max_tokens) if body.max_tokens is not None else None
    options["logprobs"] = body.logprobs
    options["echo"] = bool(body.echo)
    scores = [
        one
        for one in (body.prompt_logprobs, body.logprobs if body.echo else None)
        if one is not None
    ]
    if scores:
        options["prompt_logprobs"] = max(scores)
    return options


def _numbered(options: GenerateOptions, caller: Caller, number: int, of: int) -> GenerateOptions:
    request_id = caller.request_id if of == 1 else f"{caller.request_id}-{number}"
    return {**options, "request_id": request_id}
