"""Checks that every text of a request goes through. Errors name the field."""

from baton.errors import InvalidRequest
from services.router.request import ModelLimits


def check_characters(name: str, count: int, limits: ModelLimits) -> None:
    """Raises InvalidRequest where so many characters never fit the context."""
    if count > limits.max_characters:
        raise InvalidRequest(
            name,
            f"{count} characters can never fit a context of {limits.context_tokens} tokens "
            f"(at most {limits.max_characters} can)",
        )


def check_length(name: str, text: str, most: int) -> None:
    """Raises InvalidRequest for more than `most` characters."""
    if len(text) > most:
        raise InvalidRequest(name, f"{len(text)} characters are more than {most}")


def check_unicode(name: str, text: str) -> None:
    """Raises InvalidRequest for half a character."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(name, f"is not valid Unicode at character {error.start}") from None
