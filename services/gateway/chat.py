"""/v1/chat/completions: the assistant's next message."""

import time
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from baton import events
from baton.client import AsyncClient, GenerateOptions
from services.gateway.answering import in_terms_of
from services.gateway.caller import Caller
from services.gateway.conversations import CONVERSATION_NAMES, conversation_of
from services.gateway.errors import Names, bad
from services.gateway.generation import Generation
from services.gateway.logprobs import chat_logprobs
from services.gateway.options import constraint_names, shared_options
from services.gateway.schemas import ChatRequest
from services.gateway.sse import DONE, Chunks, event
from services.gateway.tooling import Tooling
from services.gateway.usage import account_of, usage_of


class Chat:
    """One request, carried out once: as one answer, or as a stream."""

    def __init__(
        self, client: AsyncClient, body: ChatRequest, model: events.Model, caller: Caller
    ) -> None:
        """Raises HttpError or InvalidRequest where it can never work."""
        self._body = body
        self._n = body.n or 1
        _check(body)
        options = _options(body, caller)
        self._tooling = Tooling.of(body, model)
        if self._tooling.constraint is not None:
            options["constraint"] = self._tooling.constraint
        prompt = conversation_of(body.messages, self._tooling.shown, body.chat_template_kwargs)
        self._generation = Generation(client, prompt, options)
        self._frame = {
            "id": f"chatcmpl-{caller.request_id}",
            "created": int(time.time()),
            "model": model.name,
        }

    @property
    def explanations(self) -> list[str]:
        """What became of it, in words."""
        return [self._generation.explanation]

    async def answer(self) -> dict[str, Any]:
        """All of it."""
        texts: defaultdict[int, _Said] = defaultdict(_Said)
        completed: events.Completed | None = None
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                completed = piece.ended or completed
                texts[piece.choice].add(piece)
        assert completed is not None, "a stream without a completion raises"
        return {
            **self._frame,
            "object": "chat.completion",
            "choices": [texts[index].choice(index) for index in range(self._n)],
            "usage": usage_of([completed]),
            "baton": account_of(completed),
        }

    async def chunks(self) -> Chunks:
        """A stream of it."""
        frame = {**self._frame, "object": "chat.completion.chunk"}
        wanted = self._body.stream_options and self._body.stream_options.include_usage
        extra: dict[str, Any] = {"usage": None} if wanted else {}
        completed: events.Completed | None = None
        began: set[int] = set()
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                completed = piece.ended or completed
                if piece.choice not in began:
                    began.add(piece.choice)
                    role = _Piece(piece.choice, {"role": "assistant", "content": ""})
                    yield event({**frame, "choices": [role.shown()], **extra})
                if piece.delta or piece.logprobs or piece.finish_reason:
                    yield event({**frame, "choices": [piece.shown()], **extra})
        assert completed is not None, "a stream without a completion raises"
        if wanted:
            account = {"usage": usage_of([completed]), "baton": account_of(completed)}
            yield event({**frame, "choices": [], **account})
        yield DONE

    async def _pieces(self) -> "AsyncGenerator[_Piece, None]":
        speeches = [self._tooling.speech() for _ in range(self._n)]
        async with aclosing(in_terms_of(self._generation.stream(), self._names())) as stream:
            async for one in stream:
                if isinstance(one, events.Delta):
                    deltas = speeches[one.choice].add(one.text)
                    logprobs = chat_logprobs(one.tokens) if self._body.logprobs else None
                    for piece in _pieces_of(one.choice, deltas, logprobs):
                        yield piece
                elif isinstance(one, events.Completed):
                    for ended in one.choices:
                        deltas, reason = speeches[ended.index].end()
                        for piece in _pieces_of(ended.index, deltas, None):
                            yield piece
                        if reason is None or ended.finish_reason is events.FinishReason.LENGTH:
                            reason = str(ended.finish_reason)
                        yield _Piece(
                            ended.index,
                            finish_reason=reason,
                            stop_reason=ended.stop_string,
                            ended=one,
                        )

    def _names(self) -> Names:
        longest = "max_tokens" if self._body.max_tokens is not None else "max_completion_tokens"
        return (
            *CONVERSATION_NAMES,
            ("sampling.max_tokens", longest),
            ("sampling.logprobs", "top_logprobs"),
            *constraint_names(self._body, "tools"),
        )


def _pieces_of(
    choice: int, deltas: list[dict[str, Any]], logprobs: dict[str, Any] | None
) -> "list[_Piece]":
    pieces = [_Piece(choice, delta) for delta in deltas] or [_Piece(choice)]
    pieces[0].logprobs = logprobs
    return pieces


@dataclass(slots=True)
class _Piece:
    """A part of one choice."""

    choice: int
    delta: dict[str, Any] = field(default_factory=dict)
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    stop_reason: str | None = None
    ended: events.Completed | None = None

    def shown(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "index": self.choice,
            "delta": self.delta,
            "logprobs": self.logprobs,
            "finish_reason": self.finish_reason,
        }
        if self.finish_reason:
            found["stop_reason"] = self.stop_reason
        return found


@dataclass(slots=True)
class _Said:
    """All parts of one choice."""

    parts: list[_Piece] = field(default_factory=list)

    def add(self, piece: _Piece) -> None:
        self.parts.append(piece)

    def choice(self, index: int) -> dict[str, Any]:
        content = "".join(part.delta.get("content") or "" for part in self.parts)
        calls = _joined_calls(
            [one for part in self.parts for one in part.delta.get("tool_calls", ())]
        )
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            message |= {"tool_calls": calls, "content": content or None}
        found = [part.logprobs["content"] for part in self.parts if part.logprobs]
        logprobs = [entry for entries in found for entry in entries]
        return {
            "index": index,
            "message": message,
            "logprobs": {"content": logprobs, "refusal": None} if found else None,
            "finish_reason": self.parts[-1].finish_reason,
            "stop_reason": self.parts[-1].stop_reason,
        }


def _joined_calls(deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The parts of calls, of which each but the first adds to the arguments, as calls."""
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        function = delta.get("function", {})
        call = calls.setdefault(
            delta["index"],
            {"id": "", "type": "function", "function": {"name": "", "arguments": ""}},
        )
        call["id"] = delta.get("id") or call["id"]
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""
    return [calls[index] for index in sorted(calls)]


def _check(body: ChatRequest) -> None:
    if body.top_logprobs is not None and not body.logprobs:
        raise bad("top_logprobs", "needs logprobs to be true")
    longest = (body.max_tokens, body.max_completion_tokens)
    if None not in longest and longest[0] != longest[1]:
        raise bad("max_tokens", "is not max_completion_tokens; give one of them")


def _options(body: ChatRequest, caller: Caller) -> GenerateOptions:
    options = shared_options(body, caller.metadata())
    longest = body.max_completion_tokens
    options["max_tokens"] = body.max_tokens if longest is None else longest
    if body.logprobs:
        options["logprobs"] = body.top_logprobs or 0
    options["request_id"] = caller.request_id
    return options
