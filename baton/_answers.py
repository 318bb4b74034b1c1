"""From answer messages to the client's values, for both clients. Knows no channels and no calls."""

from typing import Literal

from baton import errors, events
from baton.v1 import inference_pb2, sampling_pb2
from baton.values import seconds


def to_event(
    response: inference_pb2.GenerateResponse,
) -> events.Event | events.Accepted | None:
    """The event of a message; None for a kind that this client does not know."""
    kind = response.WhichOneof("event")
    if kind == "delta":
        delta = response.delta
        return events.Delta(delta.text, tuple(map(_token, delta.tokens)), delta.choice)
    if kind == "prompt":
        return events.PromptEcho(response.prompt.text, tuple(map(_token, response.prompt.tokens)))
    if kind == "completed":
        return _completed(response.completed)
    if kind == "accepted":
        accepted = response.accepted
        return events.Accepted(accepted.request_id, accepted.seed, seconds(accepted.predicted_ttft))
    return None


def _token(token: sampling_pb2.SampledToken) -> events.Token:
    return events.Token(
        token.token_id,
        token.logprob if token.HasField("logprob") else None,
        tuple(
            events.TokenLogprob(top.token_id, top.logprob, top.text) for top in token.top_logprobs
        ),
        token.text,
    )


_FINISH_REASONS = {
    sampling_pb2.FINISH_REASON_STOP: events.FinishReason.STOP,
    sampling_pb2.FINISH_REASON_LENGTH: events.FinishReason.LENGTH,
}


def _completed_choice(choice: inference_pb2.CompletedChoice) -> events.CompletedChoice:
    reason = _FINISH_REASONS.get(choice.finish_reason)
    if reason is None:
        raise errors.InternalError(f"unknown finish reason {choice.finish_reason}")
    return events.CompletedChoice(
        index=choice.index,
        finish_reason=reason,
        stop_string=choice.stop_string if choice.HasField("stop_string") else None,
        completion_tokens=choice.completion_tokens,
        decode_worker=choice.decode_worker,
    )


def _completed(completed: inference_pb2.GenerateCompleted) -> events.Completed:
    if not completed.choices:
        raise errors.InternalError("a completion without a choice")
    return events.Completed(
        choices=tuple(map(_completed_choice, completed.choices)),
        usage=events.Usage(
            completed.usage.prompt_tokens,
            completed.usage.completion_tokens,
            completed.usage.cached_tokens,
        ),
        timings=_timings(completed.timings),
        request_id=completed.request_id,
        seed=completed.seed,
    )


def _timings(timings: inference_pb2.Timings) -> events.Timings:
    return events.Timings(
        queue=seconds(timings.queue),
        prefill=seconds(timings.prefill),
        time_to_first_token=seconds(timings.time_to_first_token),
        handoff_gap=seconds(timings.handoff_gap) if timings.HasField("handoff_gap") else None,
        total=seconds(timings.total),
        prefill_worker=timings.prefill_worker,
        decode_worker=timings.decode_worker,
        prefill_attempts=timings.prefill_attempts,
        decode_attempts=timings.decode_attempts,
        predicted_ttft=seconds(timings.predicted_ttft),
        predicted_itl=seconds(timings.predicted_itl),
        migrations=timings.migrations,
    )


def to_model(response: inference_pb2.GetModelResponse) -> events.Model:
    """The model of a message."""
    return events.Model(
        name=response.model.name,
        vocab_size=response.model.vocab_size,
        context_tokens=response.model.context_tokens,
        eos_token_ids=frozenset(response.model.eos_token_ids),
        has_chat_template=response.has_chat_template,
        default_max_tokens=response.default_max_tokens,
        default_sampling=_default_sampling(response.default_sampling),
        interactive_targets=_targets(response, "interactive_targets"),
        batch_targets=_targets(response, "batch_targets"),
        tool_format=_TOOL_FORMATS.get(response.tool_format, events.ToolFormat.NONE),
    )


_TOOL_FORMATS = {
    inference_pb2.TOOL_FORMAT_HERMES: events.ToolFormat.HERMES,
    inference_pb2.TOOL_FORMAT_LLAMA: events.ToolFormat.LLAMA,
    inference_pb2.TOOL_FORMAT_MISTRAL: events.ToolFormat.MISTRAL,
    inference_pb2.TOOL_FORMAT_JSON: events.ToolFormat.JSON,
}


def to_tokens(response: inference_pb2.TokenizeResponse) -> events.Tokens:
    """The tokens of a message."""
    return events.Tokens(tuple(response.token_ids), tuple(response.texts))


def _targets(
    response: inference_pb2.GetModelResponse, name: Literal["interactive_targets", "batch_targets"]
) -> events.Targets | None:
    if not response.HasField(name):
        return None
    targets: inference_pb2.Targets = getattr(response, name)
    return events.Targets(seconds(targets.ttft), seconds(targets.itl))


def _default_sampling(sampling: sampling_pb2.SamplingParams) -> events.DefaultSampling:
    return events.DefaultSampling(
        temperature=sampling.temperature if sampling.HasField("temperature") else None,
        top_k=sampling.top_k if sampling.HasField("top_k") else None,
        top_p=sampling.top_p if sampling.HasField("top_p") else None,
        min_p=sampling.min_p if sampling.HasField("min_p") else None,
        repetition_penalty=(
            sampling.repetition_penalty if sampling.HasField("repetition_penalty") else None
        ),
    )
