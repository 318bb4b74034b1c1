"""What outputs are held to, as both sides of a handoff and the router know it.

    constraint_of(field, message) -> Constraint | None   from the wire, sizes checked
    constraint_message(constraint)                       and back
    grammars.compile(constraint, tokens)                 a matcher at the beginning of a text

`grammars` loads the library that does the work; nothing else here does.
"""

from services.common.constraints.values import (
    Constraint,
    Kind,
    check_constraint,
    constraint_message,
    constraint_of,
)

__all__ = ["Constraint", "Kind", "check_constraint", "constraint_message", "constraint_of"]
