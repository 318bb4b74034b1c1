"""What a device can do at best, measured: a large product of matrices, and a large copy.

Short, so that every worker can do it at its start. Both are what torch reaches, not what a data
sheet says: a rate near them leaves only a smaller model or another device to win from.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

BUDGET_S = 0.06
"""For each of the two, less the run that goes beyond it."""
_SIDES = (256, 512, 1024, 2048, 4096, 8192)
"""Of the matrices; larger ones come as long as the time goes. A small one does not fill a GPU."""
_COPY_BYTES = {"cpu": 64 << 20, "cuda": 512 << 20}
"""More than caches hold, as weights are; twice that is allocated for a moment."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """A device's measured speeds."""

    flops_per_second: float
    bytes_per_second: float
    """Bytes read and bytes written."""


def measure_peaks(dtype: torch.dtype, device: str) -> Peaks:
    """Measure in the calling thread, with its number of compute threads."""
    with torch.inference_mode():
        return Peaks(_product_rate(dtype, device), _copy_rate(device))


def _product_rate(dtype: torch.dtype, device: str) -> float:
    """Operations per second of the fastest product that there is time for."""
    best, deadline = 0.0, time.perf_counter() + BUDGET_S
    for side in _SIDES:
        left, right = (torch.full((side, side), 0.5, dtype=dtype, device=device) for _ in "ab")
        out = torch.empty_like(left)

        def product(left: Tensor = left, right: Tensor = right, out: Tensor = out) -> None:
            torch.mm(left, right, out=out)

        best = max(best, 2 * side**3 / _fastest(product, device, deadline))
        # The next one takes eight times as long, and twice: once to warm up.
        if time.perf_counter() + 16 * (2 * side**3 / best) > deadline:
            break
    return best


def _copy_rate(device: str) -> float:
    size = _COPY_BYTES.get(torch.device(device).type, 64 << 20)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    deadline = time.perf_counter() + BUDGET_S
    return 2 * size / _fastest(lambda: target.copy_(source), device, deadline)


def _fastest(run: Callable[[], object], device: str, deadline: float) -> float:
    """Least seconds of a few runs, after one that warms up; one at least."""
    run()
    best = float("inf")
    for _ in range(5):
        _wait(device)
        began = time.perf_counter()
        run()
        _wait(device)
        ended = time.perf_counter()
        best = min(best, ended - began)
        if ended > deadline:
            break
    return best


def _wait(device: str) -> None:
    """Until the device has done what it was told to."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
