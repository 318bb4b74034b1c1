"""How a model's makers want its output drawn where a request does not say.

A Hugging Face directory says so in generation_config.json, a GGUF file in `general.sampling.*`.
A value that is not a number, or is out of the range that a request may use, is left out with a
warning in the log: what a model recommends must not make every request of it invalid.

Knows no requests; who asks for what is `services.router.validation`'s.
"""

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.common.sampling_limits import MAX_REPETITION_PENALTY, MAX_TEMPERATURE

log = logging.getLogger(__name__)

_GENERATION_NAMES = {
    name: name for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
}
_GGUF_NAMES = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What a model recommends. None: it recommends nothing. Values are in a request's ranges."""

    temperature: float | None = None
    """0: greedy."""
    top_k: int | None = None
    """0: keep all; never more than the tokenizer's vocabulary has."""
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


def of_directory(directory: Path, vocabulary_size: int) -> SamplingDefaults:
    """What `directory`'s generation_config.json recommends; nothing where it has none.

    Where do_sample is false the temperature is 0, whatever else the file says. A file that
    does not say is taken to sample: it would have no use for a temperature otherwise.
    """
    path = directory / "generation_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return SamplingDefaults()
    except (OSError, ValueError) as error:
        log.warning("%s is ignored: %s", path, error)
        return SamplingDefaults()
    if not isinstance(config, dict):
        log.warning("%s is ignored: it is not a JSON object", path)
        return SamplingDefaults()
    if config.get("do_sample") is False:
        config["temperature"] = 0.0
    return _defaults(config, _GENERATION_NAMES, path, vocabulary_size)


def of_gguf(metadata: Mapping[str, Any], path: Path, vocabulary_size: int) -> SamplingDefaults:
    """What the GGUF file at `path` recommends in its `metadata`."""
    return _defaults(metadata, _GGUF_NAMES, path, vocabulary_size)


def _defaults(
    values: Mapping[str, Any], names: Mapping[str, str], path: Path, vocabulary_size: int
) -> SamplingDefaults:
    def number(field: str, low: float, high: float, *, above: bool = False) -> float | None:
        name = names[field]
        value = values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            log.warning("%s: %s is ignored: %.60r is not a number", path, name, value)
        elif math.isnan(value) or not low <= value <= high or (above and value == low):
            log.warning("%s: %s is ignored: %.60r is out of range", path, name, value)
        else:
            return float(value)
        return None

    top_k = number("top_k", 0, vocabulary_size)
    if top_k is not None and not top_k.is_integer():
        log.warning("%s: %s is ignored: %r is not a whole number", path, names["top_k"], top_k)
        top_k = None
    return SamplingDefaults(
        temperature=number("temperature", 0, MAX_TEMPERATURE),
        top_k=None if top_k is None else int(top_k),
        top_p=number("top_p", 0, 1, above=True),
        min_p=number("min_p", 0, 1),
        repetition_penalty=number("repetition_penalty", 0, MAX_REPETITION_PENALTY, above=True),
    )
