"""From a client's fields to a generation that can work: checked, tokenized, complete.

Nothing of the fleet is spent here. Knows no protobuf and no workers, only the limits that
the fleet has in common.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from baton import errors
from baton.policy import fleet
from services.router.ending import Ending
from services.router.output import Output, TokenText
from services.router.request import ClassTargets
from services.router.sampling import TokenSequence, with_defaults
from services.router.text import Message, SamplingDefaults
from services.router.validation import (
    ChatPrompt,
    Generation,
    ModelLimits,
    Prompt,
    RequestFields,
    TextPrompt,
    TokenPrompt,
    check_prompt,
    check_request,
)

_RETRY_AFTER_S = 1.0


class Tokenizer(Protocol):
    """What intake needs of `services.router.text.TextModel`."""

    @property
    def has_chat_template(self) -> bool: ...

    @property
    def default_sampling(self) -> SamplingDefaults: ...

    def encode(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: Sequence[Message]) -> list[int]: ...

    def encode_piece(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def detokenizer(self, prompt_ids: Sequence[int]) -> TokenText: ...

    def max_characters(self, context_tokens: int) -> int: ...


class Fleet(Protocol):
    """What intake needs of `services.router.fleet.FleetView`."""

    def model(self) -> fleet.ModelLimits | None: ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model as clients see it."""

    limits: ModelLimits
    eos_token_ids: frozenset[int]
    has_chat_template: bool
    default_sampling: SamplingDefaults
    targets: ClassTargets


@dataclass(frozen=True, slots=True)
class Accepted:
    """A generation to carry out, and what turns its tokens into output."""

    generation: Generation
    ending: Ending
    outputs: tuple[Output, ...]
    """One for each choice."""
    prompt_text: str | None
    """None unless the prompt is to be echoed."""


class Intake:
    """Accepts requests for the one model that is served."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        fleet_view: Fleet,
        model_name: str,
        default_max_tokens: int,
        targets: ClassTargets,
    ) -> None:
        self._tokenizer = tokenizer
        self._fleet = fleet_view
        self._model_name = model_name
        self._default_max_tokens = default_max_tokens
        self._targets = targets
        self._known: fleet.ModelLimits | None = None

    def model(self) -> ServedModel:
        """The model; Unavailable as long as no worker has ever told what it serves.

        Its limits stay known while all workers are away: whoever waits for one may be lucky.
        """
        self._known = known = self._fleet.model() or self._known
        if known is None:
            raise errors.Unavailable(
                "no worker serves the model yet", reason="NO_WORKER", retry_after=_RETRY_AFTER_S
            )
        limits = ModelLimits(
            name=self._model_name or known.name,
            vocab_size=known.vocab_size,
            context_tokens=known.context_tokens,
            default_max_tokens=self._default_max_tokens,
            max_characters=self._tokenizer.max_characters(known.context_tokens),
        )
        return ServedModel(
            limits,
            known.eos_token_ids,
            self._tokenizer.has_chat_template,
            self._tokenizer.default_sampling,
            self._targets,
        )

    async def accept(self, fields: RequestFields) -> Accepted:
        """Raises InvalidRequest naming the field, NotFound for another model, Unavailable."""
        model = self.model()
        sampling = with_defaults(fields.sampling, model.default_sampling, model.limits)
        checked = check_request(replace(fields, sampling=sampling), model.limits)
        prompt_ids = await self._tokenize(checked.prompt)
        bad_words = [self._ways_to_write(word) for word in checked.bad_words]
        generation = check_prompt(checked, prompt_ids, model.limits, bad_words)
        ending = Ending.of(generation, model.eos_token_ids)
        _check_ends(generation, ending)
        prompt_text = None
        if generation.echo:
            prompt_text = await asyncio.to_thread(self._tokenizer.decode, generation.prompt_ids)
        outputs = tuple(self._output(generation, ending) for _ in range(generation.choices))
        return Accepted(generation, ending, outputs, prompt_text)

    def _output(self, generation: Generation, ending: Ending) -> Output:
        detokenizer = self._tokenizer.detokenizer(generation.prompt_ids)
        return Output(detokenizer, generation.stop, ending)

    def _ways_to_write(self, word: str) -> list[TokenSequence]:
        """The word as tokens where it begins a text or continues a word, and behind a space."""
        return [tuple(self._tokenizer.encode_piece(text)) for text in (word, f" {word}")]

    async def _tokenize(self, prompt: Prompt) -> Sequence[int]:
        match prompt:
            case TextPrompt(text):
                return await asyncio.to_thread(self._tokenizer.encode, text)
            case ChatPrompt(messages):
                said = [Message(role, content) for role, content in messages]
                return await asyncio.to_thread(self._tokenizer.encode_chat, said)
            case TokenPrompt(ids):
                return ids


def _check_ends(generation: Generation, ending: Ending) -> None:
    """What a client has of a choice may be all of it, but not more."""
    for index, ids in enumerate(generation.emitted):
        if (end := ending.first_end(ids)) is not None and end < len(ids) - 1:
            raise errors.InvalidRequest(
                f"resume_from.emitted[{index}]",
                f"{ids[end]} at {end} ends the output, and others follow it",
            )
