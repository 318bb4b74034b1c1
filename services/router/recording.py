"""Writes down what became of each request, for the simulator to replay: one JSON object a line.

The first four fields are those of public traces: `timestamp` (ms since 1970, so that what several
routers wrote, or one that restarted, is in one order), `input_length`, `output_length`, and
`hash_ids`, a number for each 512 tokens of the prompt, equal where prompts begin alike. What was
asked, decided, predicted and measured follows; times are in seconds. Tokens and text are never
written. Lines are written on another thread, and lost when that can't keep up.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from services.router.report import Outcome, Report

log = logging.getLogger(__name__)

HASHED_TOKENS = 512
FLUSH_S = 1.0
MAX_LINES = 100_000
"""Lines that wait to be written."""


class Recorder:
    """Belongs to one event loop. Does nothing where there is no path."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lines: list[str] = []
        self._lost = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Writes in the background. Raises OSError where the file can't be written."""
        if self._path is not None:
            await asyncio.to_thread(_append, self._path, [])
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Writes what is left."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            with contextlib.suppress(OSError):
                await self._flush()

    def record(self, report: Report) -> None:
        """Writes down what became of a request."""
        if self._path is not None:
            self.add({"timestamp": round(1000 * report.arrival_s), **_entry(report)})

    def add(self, entry: dict[str, Any]) -> None:
        """Keeps an entry to be written."""
        if len(self._lines) >= MAX_LINES:
            self._lost += 1
            return
        self._lines.append(json.dumps(entry, separators=(",", ":")))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            try:
                await self._flush()
            except OSError as error:
                log.warning("decisions are not recorded: %s", error)

    async def _flush(self) -> None:
        lines, self._lines = self._lines, []
        if self._lost:
            log.warning("%d decisions were not recorded", self._lost)
            self._lost = 0
        if lines and self._path is not None:
            await asyncio.to_thread(_append, self._path, lines)


def _entry(report: Report) -> dict[str, Any]:
    generation, placement, urgency = report.generation, report.placement, report.generation.urgency
    done, timings = report.outcome is Outcome.COMPLETED, report.timings
    asked: dict[str, Any] = {
        "input_length": len(generation.prompt_ids),
        "output_length": report.output_tokens if done else generation.max_tokens,
        "hash_ids": hash_ids(generation.prompt_ids),
        "class": "batch" if urgency.batch else "interactive",
        "tenant": urgency.tenant,
        "priority": urgency.priority,
        "choices": generation.choices,
        "outcome": report.outcome.value,
        "reason": report.reason,
    }
    if placement is None:
        given = {"ttft_target": urgency.ttft_target_s, "itl_target": urgency.itl_target_s}
        return asked | {name: target_s for name, target_s in given.items() if target_s is not None}
    return asked | {
        "ttft_target": placement.ttft_target_s,
        "itl_target": placement.itl_target_s,
        "queue": timings.queue,
        "ttft": timings.time_to_first_token,
        "itl": report.itl_s,
        "predicted_ttft": timings.predicted_ttft,
        "predicted_itl": timings.predicted_itl,
        "prefill_worker": timings.prefill_worker,
        "decode_worker": timings.decode_worker,
        "cached_tokens": report.usage.cached_tokens,
        "local": placement.local,
        "degraded": placement.degraded,
        "prefill_attempts": timings.prefill_attempts,
        "decode_attempts": timings.decode_attempts,
        "migrations": timings.migrations,
    }


def hash_ids(tokens: Sequence[int]) -> list[int]:
    """A number for each 512 tokens, the last few included: equal where all before is equal."""
    ids: list[int] = []
    parent = b""
    for start in range(0, len(tokens), HASHED_TOKENS):
        part = tokens[start : start + HASHED_TOKENS]
        parent = hashlib.blake2b(
            parent + struct.pack(f"<{len(part)}I", *part), digest_size=7
        ).digest()
        ids.append(int.from_bytes(parent, "big"))
    return ids


def _append(path: Path, lines: Sequence[str]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
