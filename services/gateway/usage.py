"""What an answer took: OpenAI's `usage`, and Baton's own account of it."""

from collections.abc import Iterable
from typing import Any

from baton import events


def usage_of(completions: Iterable[events.Completed], *, generated: bool = True) -> dict[str, Any]:
    """Tokens of all completions; `generated` False: the output was not asked for."""
    ended = list(completions)
    prompt = sum(one.usage.prompt_tokens for one in ended)
    completion = sum(one.usage.completion_tokens for one in ended) if generated else 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(one.usage.cached_tokens for one in ended)},
    }


def account_of(completed: events.Completed) -> dict[str, Any]:
    """How long it took and where, in seconds; an extension of OpenAI's answers."""
    timings = completed.timings
    return {
        "request_id": completed.request_id,
        "seed": completed.seed,
        "queue_s": timings.queue,
        "prefill_s": timings.prefill,
        "ttft_s": timings.time_to_first_token,
        "total_s": timings.total,
        "prefill_worker": timings.prefill_worker,
        "decode_worker": timings.decode_worker,
    }
