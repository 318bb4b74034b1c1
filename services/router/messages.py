"""Protobuf messages to the router's values and back. Pure functions, used at its doors only."""

from collections.abc import Callable

from baton.v1 import inference_pb2, sampling_pb2, worker_pb2
from baton.values import seconds
from services.common.constraints import constraint_message, constraint_of
from services.common.durations import to_duration
from services.common.text import ToolFormat
from services.router.events import (
    Admitted,
    Completed,
    CompletedChoice,
    Delta,
    Event,
    FinishReason,
    PromptShown,
    SampledToken,
    Timings,
)
from services.router.intake import ServedModel
from services.router.request import MessageFields, ResumeFrom, TokenizeFields, ToolCallFields
from services.router.validation import (
    ChatPrompt,
    Generation,
    Prompt,
    RequestFields,
    SamplingFields,
    TextPrompt,
    TokenPrompt,
)

_BATCH = {
    inference_pb2.REQUEST_CLASS_UNSPECIFIED: False,
    inference_pb2.REQUEST_CLASS_INTERACTIVE: False,
    inference_pb2.REQUEST_CLASS_BATCH: True,
}
_REASON_TO_WIRE = {
    FinishReason.STOP: sampling_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: sampling_pb2.FINISH_REASON_LENGTH,
}
_TOOL_FORMAT_TO_WIRE = {
    ToolFormat.NONE: inference_pb2.TOOL_FORMAT_UNSPECIFIED,
    ToolFormat.HERMES: inference_pb2.TOOL_FORMAT_HERMES,
    ToolFormat.LLAMA: inference_pb2.TOOL_FORMAT_LLAMA,
    ToolFormat.MISTRAL: inference_pb2.TOOL_FORMAT_MISTRAL,
    ToolFormat.JSON: inference_pb2.TOOL_FORMAT_JSON,
}
_REASON_FROM_WIRE = {wire: reason for reason, wire in _REASON_TO_WIRE.items()}

TextOf = Callable[[int], bytes]
"""The bytes that a token adds to a text."""


def request_fields(message: inference_pb2.GenerateRequest) -> RequestFields:
    """A client's request as it came; nothing is checked yet."""
    return RequestFields(
        prompt=_prompt(message),
        request_id=message.request_id,
        model=message.model,
        sampling=_sampling_fields(message.sampling),
        stop=tuple(message.stop),
        choices=message.n,
        echo=message.echo,
        bad_words=tuple(message.bad_words),
        best_of=message.best_of,
        batch=_BATCH.get(message.request_class),
        ttft_target_s=seconds(message.ttft_target) if message.HasField("ttft_target") else None,
        itl_target_s=seconds(message.itl_target) if message.HasField("itl_target") else None,
        priority=message.priority,
        tenant=message.tenant,
        resume_from=_resume_from(message),
    )


def _resume_from(message: inference_pb2.GenerateRequest) -> ResumeFrom | None:
    if not message.HasField("resume_from"):
        return None
    resume = message.resume_from
    return ResumeFrom(resume.seed, tuple(tuple(one.ids) for one in resume.emitted))


def response(event: Event, text_of: TextOf) -> inference_pb2.GenerateResponse:
    """An event for the client; `text_of` tells the bytes of tokens, where they are wanted."""
    match event:
        case Admitted(request_id, seed, predicted_ttft_s):
            accepted = inference_pb2.GenerateAccepted(
                request_id=request_id, seed=seed, predicted_ttft=to_duration(predicted_ttft_s)
            )
            return inference_pb2.GenerateResponse(accepted=accepted)
        case Delta(text, tokens, choice):
            delta = inference_pb2.GenerateDelta(
                text=text, tokens=[_shown_token(one, text_of) for one in tokens], choice=choice
            )
            return inference_pb2.GenerateResponse(delta=delta)
        case PromptShown(text, tokens, has_logprobs):
            shown = [_shown_token(token, text_of) for token in tokens]
            if has_logprobs:
                shown[0].text = text_of(shown[0].token_id)
            prompt = inference_pb2.GeneratePrompt(text=text, tokens=shown)
            return inference_pb2.GenerateResponse(prompt=prompt)
        case Completed():
            return inference_pb2.GenerateResponse(completed=_completed(event))


def sampling_message(
    generation: Generation, *, wants_prompt: bool = True
) -> sampling_pb2.SamplingParams:
    """Sampling parameters for workers: everything is said, nothing left to their defaults.

    Where the log probabilities of the prompt aren't wanted (any more), they are not asked for.
    """
    sampling = generation.sampling
    return sampling_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed,
        max_tokens=generation.max_tokens,
        min_tokens=sampling.min_tokens,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        logprobs=sampling.logprobs,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=dict(sampling.logit_bias),
        bad_sequences=[
            sampling_pb2.TokenSequence(token_ids=sequence) for sequence in sampling.bad_sequences
        ],
        prompt_logprobs=sampling.prompt_logprobs if wants_prompt else None,
        constraint=constraint_message(sampling.constraint),
    )


def sampled_token(message: sampling_pb2.SampledToken) -> SampledToken:
    """A token that a worker sampled."""
    if not message.HasField("logprob"):
        return SampledToken(message.token_id)
    top = tuple((entry.token_id, entry.logprob) for entry in message.top_logprobs)
    return SampledToken(message.token_id, message.logprob, top)


def sampled_token_message(token: SampledToken) -> sampling_pb2.SampledToken:
    """The inverse of `sampled_token`."""
    if token.logprob is None:
        return sampling_pb2.SampledToken(token_id=token.token_id)
    top = [
        sampling_pb2.TokenLogprob(token_id=token_id, logprob=logprob)
        for token_id, logprob in token.top
    ]
    return sampling_pb2.SampledToken(
        token_id=token.token_id, logprob=token.logprob, top_logprobs=top
    )


def _shown_token(token: SampledToken, text_of: TextOf) -> sampling_pb2.SampledToken:
    """A token for the client, with texts where log probabilities were asked for."""
    message = sampled_token_message(token)
    if token.logprob is not None:
        message.text = text_of(token.token_id)
        for entry in message.top_logprobs:
            entry.text = text_of(entry.token_id)
    return message


def finish_reason(wire: sampling_pb2.FinishReason.ValueType) -> FinishReason | None:
    """None where the sequence goes on."""
    return _REASON_FROM_WIRE.get(wire)


def finish_reason_message(reason: FinishReason) -> sampling_pb2.FinishReason.ValueType:
    """The inverse of `finish_reason`."""
    return _REASON_TO_WIRE[reason]


def _prompt(message: inference_pb2.GenerateRequest) -> Prompt | None:
    match message.WhichOneof("input"):
        case "text":
            return TextPrompt(message.text)
        case "chat":
            return _chat(message.chat)
        case "token_ids":
            return TokenPrompt(tuple(message.token_ids.ids))
    return None


def _chat(chat: inference_pb2.ChatMessages) -> ChatPrompt:
    return ChatPrompt(
        tuple(
            MessageFields(
                said.role,
                said.content,
                said.name,
                tuple(
                    ToolCallFields(call.id, call.name, call.arguments_json)
                    for call in said.tool_calls
                ),
                said.tool_call_id,
            )
            for said in chat.messages
        ),
        tuple(chat.tools_json),
        chat.template_variables_json,
    )


def tokenize_fields(message: inference_pb2.TokenizeRequest) -> TokenizeFields:
    """A question for tokens as it came; nothing is checked yet."""
    prompt: TextPrompt | ChatPrompt | None = None
    if message.WhichOneof("input") == "text":
        prompt = TextPrompt(message.text)
    elif message.WhichOneof("input") == "chat":
        prompt = _chat(message.chat)
    return TokenizeFields(prompt, message.model, not message.without_special_tokens)


def _sampling_fields(message: sampling_pb2.SamplingParams) -> SamplingFields:
    optional = {
        name: getattr(message, name) if message.HasField(name) else None  # type: ignore[arg-type]
        for name in _OPTIONAL_SAMPLING
    }
    return SamplingFields(
        **optional,
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        logit_bias=tuple(sorted(message.logit_bias.items())),
        bad_sequences=tuple(tuple(one.token_ids) for one in message.bad_sequences),
        constraint=constraint_of(message),
    )


_OPTIONAL_SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "seed", "max_tokens", "min_tokens", "logprobs",
    "repetition_penalty", "presence_penalty", "frequency_penalty", "prompt_logprobs",
)  # fmt: skip


def _completed(event: Completed) -> inference_pb2.GenerateCompleted:
    return inference_pb2.GenerateCompleted(
        choices=map(_completed_choice, event.choices),
        usage=inference_pb2.Usage(
            prompt_tokens=event.usage.prompt_tokens,
            completion_tokens=event.usage.completion_tokens,
            cached_tokens=event.usage.cached_tokens,
        ),
        timings=timings_message(event.timings),
        request_id=event.request_id,
        seed=event.seed,
    )


def _completed_choice(choice: CompletedChoice) -> inference_pb2.CompletedChoice:
    return inference_pb2.CompletedChoice(
        index=choice.index,
        finish_reason=finish_reason_message(choice.finish_reason),
        stop_string=choice.stop_string,
        completion_tokens=choice.completion_tokens,
        decode_worker=choice.decode_worker or "",
    )


def timings_message(timings: Timings) -> inference_pb2.Timings:
    """How long a request took, for clients."""
    gap = timings.handoff_gap
    return inference_pb2.Timings(
        queue=to_duration(timings.queue),
        prefill=to_duration(timings.prefill),
        time_to_first_token=to_duration(timings.time_to_first_token),
        handoff_gap=None if gap is None else to_duration(gap),
        total=to_duration(timings.total),
        prefill_worker=timings.prefill_worker or "",
        decode_worker=timings.decode_worker or "",
        prefill_attempts=timings.prefill_attempts,
        decode_attempts=timings.decode_attempts,
        predicted_ttft=to_duration(timings.predicted_ttft),
        predicted_itl=to_duration(timings.predicted_itl),
        migrations=timings.migrations,
    )


def model_response(model: ServedModel) -> inference_pb2.GetModelResponse:
    """The model as clients are told of it."""
    defaults, targets = model.default_sampling, model.targets
    limits = worker_pb2.ModelLimits(
        name=model.limits.name,
        vocab_size=model.limits.vocab_size,
        context_tokens=model.limits.context_tokens,
        eos_token_ids=sorted(model.eos_token_ids),
    )
    return inference_pb2.GetModelResponse(
        model=limits,
        has_chat_template=model.has_chat_template,
        default_max_tokens=model.limits.default_max_tokens,
        default_sampling=sampling_pb2.SamplingParams(
            temperature=defaults.temperature,
            top_k=defaults.top_k,
            top_p=defaults.top_p,
            min_p=defaults.min_p,
            repetition_penalty=defaults.repetition_penalty,
        ),
        interactive_targets=_targets(targets.interactive_ttft_s, targets.interactive_itl_s),
        batch_targets=_targets(targets.batch_ttft_s, targets.batch_itl_s),
        tool_format=_TOOL_FORMAT_TO_WIRE[model.tool_format],
    )


def _targets(ttft_s: float, itl_s: float) -> inference_pb2.Targets:
    return inference_pb2.Targets(ttft=to_duration(ttft_s), itl=to_duration(itl_s))
