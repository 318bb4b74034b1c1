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
from services.common.constraints import Constraint
from services.common.text import Conversation, SamplingDefaults, ToolFormat
from services.router.ending import Ending
from services.router.inputs import check_input, check_model, check_text
from services.router.output import Output, TokenText
from services.router.request import CheckedPrompt, ClassTargets, TokenizeFields
from services.router.sampling import TokenSequence, check_vocabulary, with_defaults
from services.router.validation import (
    Generation,
    ModelLimits,
    RequestFields,
    TextPrompt,
    TokenPrompt,
    check_prompt,
    check_request,
)

_RETRY_AFTER_S = 1.0


class Tokenizer(Protocol):
    """What intake needs of `services.common.text.TextModel`."""

    @property
    def has_chat_template(self) -> bool: ...

    @property
    def tool_format(self) -> ToolFormat: ...

    @property
    def default_sampling(self) -> SamplingDefaults: ...

    def encode(self, text: str) -> list[int]: ...

    def encode_chat(self, conversation: Conversation) -> list[int]: ...

    def encode_piece(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def token_text(self, token_id: int) -> bytes: ...

    def detokenizer(self, prompt_ids: Sequence[int]) -> TokenText: ...

    def max_characters(self, context_tokens: int) -> int: ...


class Constraints(Protocol):
    """What intake needs of `services.router.constraint_checker.ConstraintChecker`."""

    async def check(self, path: str, constraint: Constraint) -> None: ...


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
    tool_format: ToolFormat


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
        constraints: Constraints | None = None,
    ) -> None:
        """`constraints`: None leaves it to the workers whether constraints make sense."""
        self._tokenizer = tokenizer
        self._fleet = fleet_view
        self._model_name = model_name
        self._default_max_tokens = default_max_tokens
        self._targets = targets
        self._constraints = constraints
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
            self._tokenizer.tool_format,
        )

    async def accept(self, fields: RequestFields) -> Accepted:
        """Raises InvalidRequest naming the field, NotFound for another model, Unavailable."""
        model = self.model()
        sampling = with_defaults(fields.sampling, model.default_sampling, model.limits)
        checked = check_request(replace(fields, sampling=sampling), model.limits)
        if self._constraints is not None and (held_to := checked.sampling.constraint) is not None:
            await self._constraints.check("sampling.constraint", held_to)
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

    async def tokenize(self, asked: TokenizeFields) -> list[int]:
        """The tokens of a text or a conversation, which need not fit the context.

        Raises as `accept` does.
        """
        limits = self.model().limits
        check_model(asked.model, limits)
        prompt = asked.prompt
        if prompt is None:
            raise errors.InvalidRequest("input", "neither text nor chat is set")
        if not isinstance(prompt, TextPrompt):
            return list(await self._tokenize(check_input(prompt, limits)))
        check_text(prompt.text, limits)
        encode = self._tokenizer.encode if asked.special_tokens else self._tokenizer.encode_piece
        return await asyncio.to_thread(encode, prompt.text)

    async def detokenize(self, model: str, ids: tuple[int, ...]) -> str:
        """The text of tokens, special ones left out. Raises InvalidRequest naming the field,
        NotFound for another model, Unavailable."""
        limits = self.model().limits
        check_model(model, limits)
        if len(ids) > limits.context_tokens:
            raise errors.InvalidRequest(
                "token_ids",
                f"{len(ids)} tokens are more than a context has: {limits.context_tokens}",
            )
        if ids:
            check_vocabulary("token_ids", ids, limits)
        return await asyncio.to_thread(self._tokenizer.decode, ids)

    def token_text(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text; of a special token its name."""
        return self._tokenizer.token_text(token_id)

    async def _tokenize(self, prompt: CheckedPrompt) -> Sequence[int]:
        match prompt:
            case TextPrompt(text):
                return await asyncio.to_thread(self._tokenizer.encode, text)
            case Conversation():
                return await asyncio.to_thread(self._tokenizer.encode_chat, prompt)
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
