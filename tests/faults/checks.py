"""What each request must yield, and whether it did.

In float32 the text is exactly the uninterrupted engine's, but for one thing: KV that was computed
again, in other chunks, differs in rounding, and a draw within that of the border between two
tokens may fall on the other side. Such a near-tie is accepted only where the reference engine
makes the same choice when it computes from some earlier token on, and it is counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from baton import errors
from engine import Request, SamplingParams
from services.common.text import TextModel
from tests.faults.clients import Outcome
from tests.faults.workload import RequestPlan
from tests.support.reference import Reference, run_together

_MOST_TIES = 2


@dataclass(frozen=True)
class Expected:
    """What an uninterrupted engine yields for a plan."""

    choices: tuple[tuple[int, ...], ...]
    full_texts: tuple[str, ...]
    stop: str | None

    @property
    def texts(self) -> tuple[str, ...]:
        """Cut before the stop string."""
        if self.stop is None:
            return self.full_texts
        return tuple(text.partition(self.stop)[0] for text in self.full_texts)


class Oracle:
    """Knows the right answers. Keeps none: each is computed when it is asked for."""

    def __init__(self, reference: Reference, text: TextModel) -> None:
        self._engine = reference.engine
        self._text = text
        self._count = 0
        self.ties = 0
        """Near-ties that were accepted so far."""

    def expected(self, plan: RequestPlan) -> Expected:
        """What `plan` must yield."""
        return self.expected_all([plan])[0]

    def expected_all(self, plans: Sequence[RequestPlan]) -> list[Expected]:
        """What each plan must yield."""
        requests = [self._request(plan, choice) for plan in plans for choice in range(plan.n)]
        outputs = iter(run_together(self._engine, requests))
        return [
            self._expected(plan, [tuple(next(outputs)) for _ in range(plan.n)]) for plan in plans
        ]

    def _expected(self, plan: RequestPlan, choices: Sequence[tuple[int, ...]]) -> Expected:
        texts = tuple(self._text_of(plan, tokens) for tokens in choices)
        return Expected(tuple(choices), texts, _stop_string(plan, texts[0]))

    def problems(self, outcome: Outcome, expected: Expected, *, strict: bool) -> list[str]:
        """What is wrong with an outcome; `strict`: a patient request must have been served."""
        for choice, tokens in enumerate(outcome.tokens):
            expected = self._with_ties(outcome.plan, expected, choice, tuple(tokens))
        return problems(outcome, expected, strict=strict)

    def blob_names(self, plan: RequestPlan) -> list[bytes]:
        """Every name that the KV of a plan's prompt can have."""
        return list(self._engine.names(Request("names", plan.prompt, SamplingParams(max_tokens=1))))

    def _with_ties(
        self, plan: RequestPlan, expected: Expected, choice: int, tokens: tuple[int, ...]
    ) -> Expected:
        for _ in range(_MOST_TIES):
            whole = expected.choices[choice]
            at = _first_difference(tokens, whole)
            if at is None or at >= len(whole) or not self._is_tie(plan, choice, tokens[: at + 1]):
                break
            self.ties += 1
            other = tokens[: at + 1] + self._output(plan, choice, tokens[: at + 1])
            choices, texts = list(expected.choices), list(expected.full_texts)
            choices[choice], texts[choice] = other, self._text_of(plan, other)
            expected = replace(expected, choices=tuple(choices), full_texts=tuple(texts))
        return expected

    def _is_tie(self, plan: RequestPlan, choice: int, tokens: tuple[int, ...]) -> bool:
        """Whether the last token is drawn when the engine begins at some token before it."""
        *before, last = tokens
        for begin in range(len(before), 0, -1):
            drawn = self._output(plan, choice, tuple(before[:begin]), len(tokens))
            if drawn == (*before[begin:], last):
                return True
        return False

    def _output(
        self,
        plan: RequestPlan,
        choice: int,
        emitted: tuple[int, ...] = (),
        until: int | None = None,
    ) -> tuple[int, ...]:
        """What follows `emitted`, up to `until` tokens in all, computed without any cache."""
        if len(emitted) >= (until or plan.max_tokens):
            return ()
        [tokens] = run_together(self._engine, [self._request(plan, choice, emitted, until)])
        return tuple(tokens)

    def _request(
        self,
        plan: RequestPlan,
        choice: int,
        emitted: tuple[int, ...] = (),
        until: int | None = None,
    ) -> Request:
        self._count += 1
        request_id = f"oracle-{self._count}"
        sampling = SamplingParams(
            max_tokens=until or plan.max_tokens,
            seed=plan.seed,
            temperature=plan.temperature,
            ignore_eos=True,
        )
        salt = request_id.encode()
        return Request(request_id, plan.prompt, sampling, emitted=emitted, choice=choice, salt=salt)

    def _text_of(self, plan: RequestPlan, tokens: Sequence[int]) -> str:
        stream = self._text.detokenizer(plan.prompt)
        return "".join([stream.push(token) for token in tokens]) + stream.finish()


def _first_difference(tokens: Sequence[int], whole: Sequence[int]) -> int | None:
    """Index of the first token that is not the right one; None where there is none."""
    pairs = zip(tokens, whole, strict=False)
    found = next((i for i, (got, right) in enumerate(pairs) if got != right), None)
    return len(whole) if found is None and len(tokens) > len(whole) else found


def _stop_string(plan: RequestPlan, text: str) -> str | None:
    if plan.stop_at is None or len(text) < 3:
        return None
    start = int(plan.stop_at * (len(text) - 2))
    return text[start : start + 2]


def problems(outcome: Outcome, expected: Expected, *, strict: bool) -> list[str]:
    """What is wrong with an outcome, near-ties apart."""
    if outcome.silent:
        return [f"no answer within {outcome.plan.timeout:.1f} s and a grace"]
    found = _wrong_pieces(outcome, expected)
    if outcome.error is not None:
        found += _wrong_error(outcome, outcome.error, strict)
    elif not outcome.cancelled:
        found += _wrong_end(outcome, expected)
    return found


def _wrong_pieces(outcome: Outcome, expected: Expected) -> list[str]:
    found = []
    for choice, (tokens, whole) in enumerate(zip(outcome.tokens, expected.choices, strict=True)):
        at = _first_difference(tokens, whole)
        if at is not None:
            found.append(
                f"choice {choice} differs from token {at} of {len(whole)} on: "
                f"{tokens[at : at + 6]}, not {list(whole[at : at + 6])}"
            )
        if not expected.texts[choice].startswith(outcome.texts[choice]):
            text = outcome.texts[choice]
            found.append(f"choice {choice} says {text!r}, not {expected.texts[choice]!r}")
    return found


def _wrong_error(outcome: Outcome, error: errors.BatonError, strict: bool) -> list[str]:
    clear = (errors.Unavailable, errors.Exhausted, errors.DeadlineExceeded)
    if not isinstance(error, clear):
        return [f"ended with {type(error).__name__}: {error.message}"]
    if strict and outcome.plan.patient:
        return [f"failed with {type(error).__name__}: {error.message}"]
    return []


def _wrong_end(outcome: Outcome, expected: Expected) -> list[str]:
    if outcome.completed is None:
        return ["ended without a completion"]
    found = []
    for ended in outcome.completed.choices:
        choice = ended.index
        stopped = expected.stop is not None and expected.stop in expected.full_texts[choice]
        if outcome.texts[choice] != expected.texts[choice]:
            found.append(
                f"choice {choice} is {outcome.texts[choice]!r}, not {expected.texts[choice]!r}"
            )
        if ended.finish_reason != ("stop" if stopped else "length"):
            found.append(f"choice {choice} ended with {ended.finish_reason}, stopped: {stopped}")
        if not stopped and len(outcome.tokens[choice]) != len(expected.choices[choice]):
            found.append(f"choice {choice} has {len(outcome.tokens[choice])} tokens")
    return found
