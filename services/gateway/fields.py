"""Types of fields that OpenAI writes in more ways than one, and fields that mean nothing here."""

from typing import Annotated, Any

from pydantic import BeforeValidator, PlainValidator

MAX_PROMPTS = 32


def _whole(value: Any) -> Any:
    """JSON knows no integers: 5.0 is one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Int = Annotated[int, BeforeValidator(_whole)]


def _prompts(value: Any) -> list[str] | list[list[int]]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ValueError("must be a string, a list of strings, or token ids")
    if not value:
        raise ValueError("is an empty list")
    if all(_is_id(item) for item in value):
        return [value]
    if not all(isinstance(item, str) for item in value) and not all(map(_are_ids, value)):
        raise ValueError("must be a string, a list of strings, token ids, or a list of token ids")
    if len(value) > MAX_PROMPTS:
        raise ValueError(f"{len(value)} prompts are more than {MAX_PROMPTS}")
    return value


def _is_id(value: Any) -> bool:
    return type(value) is int


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_id, value))


Prompts = Annotated[
    list[str] | list[list[int]],
    PlainValidator(_prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
]
"""One prompt or several."""


def _strings(value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("must be a string or a list of strings")
    return texts


Strings = Annotated[list[str], PlainValidator(_strings, json_schema_input_type=str | list[str])]
"""One string or several."""

IGNORED = frozenset(
    {
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "prediction", "request_id",
    }
)  # fmt: skip
"""Fields that clients send and that change no output."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (True,),
    "continue_final_message": (False,),
    "detokenize": (True,),
    "early_stopping": (False,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1, 1.0),
    "modalities": (["text"],),
    "return_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "use_beam_search": (False,),
}
"""Fields that are fine as long as they ask for what is done anyway."""


def check_extra(extra: dict[str, Any] | None) -> None:
    """Refuses a field that is unknown here and could change the output. Raises ValueError."""
    for name, value in (extra or {}).items():
        if value is None or name in IGNORED:
            continue
        neutral = NEUTRAL.get(name)
        if neutral is None:
            raise UnknownField(name, "is not a field that is known here")
        if value not in neutral:
            raise UnknownField(name, f"{value!r:.40} is not supported; leave it out")


class UnknownField(Exception):
    """A field that can't be ignored."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name
        self.message = message
