"""Checks a request against the model's limits, before anything is spent on it.

Two steps, since tokenizing comes between them:

    checked = check_request(fields, limits)         cheap; refuses what can never work
    ids = tokenize checked.prompt                    the caller's, in a thread where it is long
    generation = check_prompt(checked, ids, limits)  lengths: prompt, max_tokens, min_tokens

Checks come in a fixed order (request_id, model, input, sampling in the order of its fields,
stop, n, best_of, bad_words, request_class, ttft_target, itl_target, priority, tenant,
resume_from; then the prompt's length, max_tokens, resume_from's, min_tokens, prompt_logprobs,
bad_words' tokens), so that the same bad request always gets the same answer. Errors name the
field by its path in `baton.v1.GenerateRequest`.

Knows no protobuf types, no tokenizer and no worker: plain values in, frozen dataclasses out
(`services.router.request`). The rules for inputs are `services.router.inputs`, those for sampling
parameters `services.router.sampling`, those for targets, tenants and resuming
`services.router.asked`.
"""

from collections.abc import Sequence
from dataclasses import replace

from baton import naming
from baton.errors import InvalidRequest
from services.common.sampling_limits import MAX_BAD_SEQUENCE_TOKENS, MAX_BAD_SEQUENCES
from services.router.asked import check_emitted, check_name, check_resume, check_urgency
from services.router.inputs import check_input, check_model, prompt_field
from services.router.request import (
    ChatPrompt,
    CheckedRequest,
    Generation,
    ModelLimits,
    Prompt,
    RequestFields,
    Sampling,
    SamplingFields,
    TextPrompt,
    TokenPrompt,
)
from services.router.sampling import TokenSequence, check_sampling
from services.router.text_fields import check_unicode

__all__ = [
    "ChatPrompt",
    "CheckedRequest",
    "Generation",
    "ModelLimits",
    "Prompt",
    "RequestFields",
    "Sampling",
    "SamplingFields",
    "TextPrompt",
    "TokenPrompt",
    "check_prompt",
    "check_request",
    "prompt_field",
]

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_CHOICES = 16
MAX_BAD_WORDS = 32
MAX_BAD_WORD_CHARACTERS = 128
MAX_PROMPT_LOGPROBS = 1_000_000
"""Log probabilities of one prompt: they come in one message, of 16 MiB at most."""


def check_request(fields: RequestFields, limits: ModelLimits) -> CheckedRequest:
    """Checks all that needs no tokenizer, and draws the request id and seed where absent.

    Raises InvalidRequest, which names the field, or NotFound for another model's name.
    """
    request_id = _request_id(fields.request_id)
    check_model(fields.model, limits)
    prompt = check_input(fields.prompt, limits)
    sampling = check_sampling(fields.sampling, limits)
    _check_strings("stop", fields.stop, MAX_STOPS, MAX_STOP_CHARACTERS)
    choices = _choices(fields)
    _check_strings("bad_words", fields.bad_words, MAX_BAD_WORDS, MAX_BAD_WORD_CHARACTERS)
    urgency = check_urgency(fields)
    emitted: tuple[tuple[int, ...], ...] = ()
    if (resume := fields.resume_from) is not None:
        emitted = check_resume(resume, fields.sampling.seed, choices, limits)
        sampling = replace(sampling, seed=resume.seed)
    return CheckedRequest(
        request_id=request_id,
        prompt=prompt,
        sampling=sampling,
        max_tokens=fields.sampling.max_tokens,
        stop=fields.stop,
        choices=choices,
        echo=fields.echo,
        bad_words=fields.bad_words,
        urgency=urgency,
        emitted=emitted,
    )


def check_prompt(
    checked: CheckedRequest,
    prompt_ids: Sequence[int],
    limits: ModelLimits,
    bad_words: Sequence[Sequence[TokenSequence]] = (),
) -> Generation:
    """Checks that prompt and output fit the context, settles max_tokens, and makes bad words
    bad sequences; `bad_words` are the ways to write each as tokens.

    Raises InvalidRequest naming the prompt's field, sampling.max_tokens, resume_from.emitted,
    sampling.min_tokens, sampling.prompt_logprobs or bad_words.
    """
    count, context = len(prompt_ids), limits.context_tokens
    name = prompt_field(checked.prompt)
    if count == 0:
        raise InvalidRequest(name, "no tokens are left of it once it is tokenized")
    _check_known(name, prompt_ids, limits)
    room = context - count
    if room < 1:
        raise InvalidRequest(
            name,
            f"{count} tokens are too long a prompt: the context has {context} tokens, "
            "and at least one must be left for the output",
        )
    max_tokens = checked.max_tokens
    if max_tokens is None:
        max_tokens = min(limits.default_max_tokens, room)
    elif max_tokens > room:
        raise InvalidRequest(
            "sampling.max_tokens",
            f"{count} tokens of prompt and {max_tokens} of output are {count + max_tokens}: "
            f"more than the context's {context} tokens; at most {room} have room",
        )
    check_emitted(checked.emitted, max_tokens)
    if checked.sampling.min_tokens > max_tokens:
        raise InvalidRequest(
            "sampling.min_tokens",
            f"{checked.sampling.min_tokens} is more than max_tokens, which is {max_tokens}",
        )
    _check_prompt_logprobs(checked.sampling.prompt_logprobs, count)
    return Generation(
        request_id=checked.request_id,
        prompt_ids=tuple(prompt_ids),
        sampling=_with_bad_words(checked, bad_words, limits),
        max_tokens=max_tokens,
        stop=checked.stop,
        choices=checked.choices,
        echo=checked.echo,
        urgency=checked.urgency,
        emitted=checked.emitted,
    )


def _check_prompt_logprobs(logprobs: int | None, prompt_tokens: int) -> None:
    if logprobs is not None and prompt_tokens * (logprobs + 1) > MAX_PROMPT_LOGPROBS:
        raise InvalidRequest(
            "sampling.prompt_logprobs",
            f"{logprobs} at each of {prompt_tokens} tokens of prompt, and the tokens' own, are "
            f"more than {MAX_PROMPT_LOGPROBS} in all",
        )


def _check_known(name: str, ids: Sequence[int], limits: ModelLimits) -> None:
    """A tokenizer may have tokens that were added without making the model larger."""
    if (highest := max(ids)) >= limits.vocab_size:
        raise InvalidRequest(
            name,
            f"is written with the token {highest}, which the tokenizer has and the model has not: "
            f"its tokens go from 0 to {limits.vocab_size - 1}",
        )


def _with_bad_words(
    checked: CheckedRequest, bad_words: Sequence[Sequence[TokenSequence]], limits: ModelLimits
) -> Sampling:
    for index, ways in enumerate(bad_words):
        for way in ways:
            if not 1 <= len(way) <= MAX_BAD_SEQUENCE_TOKENS:
                raise InvalidRequest(
                    f"bad_words[{index}]",
                    f"is {len(way)} tokens, not 1 to {MAX_BAD_SEQUENCE_TOKENS}",
                )
            _check_known(f"bad_words[{index}]", way, limits)
    of_words = (way for ways in bad_words for way in ways)
    every = tuple(dict.fromkeys([*checked.sampling.bad_sequences, *of_words]))
    if len(every) > MAX_BAD_SEQUENCES:
        raise InvalidRequest(
            "bad_words",
            f"with sampling.bad_sequences they are {len(every)} token sequences, more than "
            f"{MAX_BAD_SEQUENCES}",
        )
    return replace(checked.sampling, bad_sequences=every)


def _request_id(request_id: str) -> naming.RequestId:
    if not request_id:
        return naming.RequestId(naming.new_id("req"))
    check_name("request_id", request_id, naming.MAX_REQUEST_ID_CHARACTERS)
    return naming.RequestId(request_id)


def _check_strings(name: str, strings: tuple[str, ...], most: int, most_characters: int) -> None:
    if len(strings) > most:
        raise InvalidRequest(name, f"{len(strings)} strings are more than {most}")
    for index, string in enumerate(strings):
        if not string:
            raise InvalidRequest(f"{name}[{index}]", "is empty")
        if len(string) > most_characters:
            raise InvalidRequest(
                f"{name}[{index}]", f"{len(string)} characters are more than {most_characters}"
            )
        check_unicode(f"{name}[{index}]", string)


def _choices(fields: RequestFields) -> int:
    if not 0 <= fields.choices <= MAX_CHOICES:
        raise InvalidRequest("n", f"{fields.choices} is not between 1 and {MAX_CHOICES}")
    choices = fields.choices or 1
    if fields.best_of > choices:
        raise InvalidRequest(
            "best_of",
            f"{fields.best_of} is more than n, which is {choices}: drawing more choices than "
            "are returned is not supported",
        )
    return choices
