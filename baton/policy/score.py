"""When a request's turn should come.

Pure functions; knows no queue. A score is a deadline, so it ages by itself: whoever comes
later has a later one, and nothing starves.
"""

DEFAULT_TTFT_TARGET_S = 2.0
PRIORITY_STEP_S = 1.0
"""How much earlier the deadline of the next higher priority is."""
MAX_PRIORITY = 10
STARTED_LEAD_S = 60.0
"""How much earlier a request is due whose client has seen tokens already."""


def queue_score(
    waited_s: float,
    ttft_target_s: float = DEFAULT_TTFT_TARGET_S,
    priority: int = 0,
    started: bool = False,
) -> float:
    """Seconds from now at which the request is due; negative when it is late.

    The queue orders by it, counted from Redis' time: the lowest is next. `waited_s` is how long
    ago the request arrived; `started` is for one that goes on after its first token.
    """
    lead = PRIORITY_STEP_S * max(-MAX_PRIORITY, min(MAX_PRIORITY, priority))
    if started:
        lead += STARTED_LEAD_S
    return ttft_target_s - waited_s - lead
