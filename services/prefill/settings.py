"""Settings of a prefill worker."""

from services.worker.settings import WorkerSettings


class PrefillSettings(WorkerSettings):
    """What a prefill worker is told."""
