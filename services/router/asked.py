"""Checks what a request asks of the scheduler, and where a stream that is resumed goes on.

Errors name the field by its path in `baton.v1.GenerateRequest`. Knows no protobuf types, no
fleet, and not whether the targets can be held.
"""

import re

from baton.errors import InvalidRequest
from baton.policy.score import MAX_PRIORITY, Urgency
from services.router.request import ModelLimits, RequestFields, ResumeFrom
from services.router.sampling import check_vocabulary

MAX_TARGET_S = 3600.0
MAX_TENANT_CHARACTERS = 64
_NAME = re.compile(r"[A-Za-z0-9_.:-]+")


def check_urgency(fields: RequestFields) -> Urgency:
    """Class, targets, priority and tenant. Raises InvalidRequest, which names the field."""
    if fields.batch is None:
        raise InvalidRequest("request_class", "is neither interactive nor batch")
    for name, target_s in (("ttft", fields.ttft_target_s), ("itl", fields.itl_target_s)):
        if target_s is not None and not 0 < target_s <= MAX_TARGET_S:
            raise InvalidRequest(
                f"{name}_target",
                f"{target_s:g} s is not above 0 and at most {MAX_TARGET_S:g} s",
            )
    if not -MAX_PRIORITY <= fields.priority <= MAX_PRIORITY:
        raise InvalidRequest(
            "priority", f"{fields.priority} is not between -{MAX_PRIORITY} and {MAX_PRIORITY}"
        )
    if fields.tenant:
        check_name("tenant", fields.tenant, MAX_TENANT_CHARACTERS)
    return Urgency(
        ttft_target_s=fields.ttft_target_s,
        itl_target_s=fields.itl_target_s,
        priority=fields.priority,
        batch=fields.batch,
        tenant=fields.tenant,
    )


def check_name(field: str, value: str, most: int) -> None:
    """Raises InvalidRequest unless `value`, which a client made up, is 1 to `most` characters of
    those that names consist of."""
    if len(value) > most:
        raise InvalidRequest(field, f"{len(value)} characters are more than {most}")
    if not _NAME.fullmatch(value):
        raise InvalidRequest(field, "has characters other than A-Z a-z 0-9 . _ : -")


def check_resume(
    resume: ResumeFrom, seed: int | None, choices: int, limits: ModelLimits
) -> tuple[tuple[int, ...], ...]:
    """The tokens of each choice that the client has. `seed` is the one in its sampling
    parameters, which may be absent but not another. Raises InvalidRequest, which names the
    field; how long the lists may be depends on max_tokens (`check_emitted`)."""
    if seed is not None and seed != resume.seed:
        raise InvalidRequest(
            "resume_from.seed", f"{resume.seed} is not sampling.seed, which is {seed}"
        )
    if len(resume.emitted) != choices:
        raise InvalidRequest(
            "resume_from.emitted",
            f"{len(resume.emitted)} lists of tokens are not one for each of {choices} choices",
        )
    for index, ids in enumerate(resume.emitted):
        if ids:
            check_vocabulary(f"resume_from.emitted[{index}].ids", ids, limits)
    return resume.emitted


def check_emitted(emitted: tuple[tuple[int, ...], ...], max_tokens: int) -> None:
    """Raises InvalidRequest where a choice has more tokens than were asked for."""
    for index, ids in enumerate(emitted):
        if len(ids) > max_tokens:
            raise InvalidRequest(
                f"resume_from.emitted[{index}]",
                f"{len(ids)} tokens are more than max_tokens, which is {max_tokens}",
            )
