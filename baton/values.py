"""Plain values for what messages of the wire say."""

from google.protobuf.duration_pb2 import Duration

from baton.v1 import worker_pb2

ROLES = {
    worker_pb2.WORKER_ROLE_PREFILL: "prefill",
    worker_pb2.WORKER_ROLE_DECODE: "decode",
}
"""Names of workers' roles; one that is not here is not known."""
PHASES = {
    worker_pb2.STEP_PHASE_PREFILL: "prefill",
    worker_pb2.STEP_PHASE_DECODE: "decode",
    worker_pb2.STEP_PHASE_MIXED: "mixed",
}
"""Names of what steps compute."""


def seconds(duration: Duration) -> float:
    """A duration in seconds."""
    return duration.seconds + duration.nanos / 1e9
