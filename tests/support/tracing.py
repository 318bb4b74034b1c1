"""Traces of a test, as those of a process."""

from contextlib import asynccontextmanager

from services.common.settings import ServiceSettings
from services.common.telemetry import tracing


def settings(**given):
    """A service's settings without flags or environment."""
    return ServiceSettings.model_construct(
        **{
            name: given.get(name, field.default)
            for name, field in ServiceSettings.model_fields.items()
        }
    )


@asynccontextmanager
async def traced(name="test", **given):
    """Traces inside the block, of a process of that name."""
    running = tracing.start(settings(**given), "test", name)
    try:
        yield running
    finally:
        await running.close()


def by_name(ring):
    """The spans that ended, by name; of several of one name the last."""
    return {span.name: span for span in everything(ring)}


def everything(ring):
    """All spans that are remembered."""
    return ring.spans(ring.trace_ids)
