"""The steps that a cost model remembers: a few of each kind and size.

Steps of one shape come in thousands; they must not push out the few of another shape, which
say what the first ones can't. So there is a bin for each size of each kind of step, and a kind
never takes another kind's bins. Knows no clock and fits nothing.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from operator import itemgetter

import numpy as np

from engine.steps import StepReport, StepShape
from services.worker.fitting import TERMS, Array

BIN_SAMPLES = 16
KIND_BINS = 12
"""The bin that got no step for longest makes room for a new one, unless it is the largest."""

_Sizes = tuple[int, int, int]
_Row = tuple[float, ...]
"""The terms of a step, its seconds, and when it was."""


class Samples:
    """At most 3 * KIND_BINS * BIN_SAMPLES steps. Not thread-safe."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[bool, bool], OrderedDict[_Sizes, deque[_Row]]] = {}

    def add(self, report: StepReport, now: float) -> None:
        """Remembers a step that ended at `now`, in seconds of any clock. O(1)."""
        shape = report.shape
        bins = self._kinds.setdefault((shape.prompt_tokens > 0, shape.sequences > 0), OrderedDict())
        sizes = _sizes(shape)
        if sizes not in bins:
            bins[sizes] = deque(maxlen=BIN_SAMPLES)
            if len(bins) > KIND_BINS:
                del bins[_least_needed(bins)]
        bins.move_to_end(sizes)
        bins[sizes].append((*terms(shape), report.seconds, now))

    def __len__(self) -> int:
        return sum(len(one) for bins in self._kinds.values() for one in bins.values())

    def arrays(self) -> tuple[Array, Array, Array]:
        """Of all steps: their terms [steps, TERMS], seconds [steps], and when they were."""
        rows = [row for bins in self._kinds.values() for one in bins.values() for row in one]
        table = np.array(rows, dtype=np.float64).reshape(len(rows), TERMS + 2)
        return table[:, :TERMS], table[:, TERMS], table[:, TERMS + 1]


def terms(shape: StepShape) -> tuple[float, float, float, float, float]:
    """What each coefficient of a cost is multiplied with."""
    return (
        1.0,
        float(shape.prompt_tokens),
        float(shape.prompt_pairs),
        float(shape.sequences),
        float(shape.context_tokens),
    )


def _least_needed(bins: Iterable[_Sizes]) -> _Sizes:
    """The first of `bins` that is the largest in nothing: those alone say what large steps take,
    which can't be told from small ones."""
    found = list(bins)
    largest = {max(reversed(found), key=itemgetter(term)) for term in range(len(found[0]))}
    return next(sizes for sizes in found if sizes not in largest)


def _sizes(shape: StepShape) -> _Sizes:
    """Prompt tokens, sequences, and tokens before them, each up to a factor of two to four."""
    earlier = shape.prompt_pairs // max(1, shape.prompt_tokens) + shape.context_tokens
    return (
        shape.prompt_tokens.bit_length(),
        shape.sequences.bit_length(),
        earlier.bit_length() // 2,
    )
