"""What a chat's tools mean for a generation: what the template shows, what the output must be,
and how its text is read."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from baton import events
from baton.constraints import Constraint
from services.gateway.errors import bad
from services.gateway.options import constraint_of as constraint_of_body
from services.gateway.schemas import ChatRequest
from services.gateway.speech import Calling, MakeSpeech, Plain
from services.gateway.tools import Chosen, constraint_of, functions_of


@dataclass(frozen=True, slots=True)
class Tooling:
    """The tools of one request."""

    shown: tuple[dict[str, Any], ...]
    """Those that the chat template is given."""
    constraint: Constraint | None
    """What the output must be for their sake. None: anything, or what the request says."""
    speech: MakeSpeech
    """Makes what reads a choice's text."""

    @classmethod
    def of(cls, body: ChatRequest, model: events.Model) -> "Tooling":
        """Raises HttpError where they can never work."""
        chosen = Chosen.of(functions_of(body.tools or ()), body.tool_choice)
        if not chosen.functions:
            return cls((), None, Plain)
        if model.tool_format is events.ToolFormat.NONE:
            raise bad("tools", "the model's chat template knows no tools")
        field, _ = constraint_of_body(body)
        if field:
            raise bad(field, "is not supported beside tools; with tool_choice `none` it is")
        parallel = body.parallel_tool_calls is not False
        names = frozenset(one.name for one in chosen.functions)
        return cls(
            tuple(body.tools or ()),
            constraint_of(chosen, model.tool_format, parallel=parallel),
            partial(Calling, model.tool_format, names, None if parallel else 1),
        )
