"""A process of its own that loads a model and prints what that took: peak and rest, in bytes.

Run as `python -m tests.support.load_peak WARM_UP_MODEL MODEL DTYPE`. Prints two numbers: by how
much resident memory grew at its highest, and by how much after loading.
"""

import gc
import sys
from pathlib import Path

import torch

from engine.loader import load_model


def status_bytes(field: str) -> int:
    """A figure of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


def main() -> None:
    warm_up, path, dtype = Path(sys.argv[1]), Path(sys.argv[2]), getattr(torch, sys.argv[3])
    torch.set_num_threads(1)
    load_model(warm_up, dtype=dtype)
    gc.collect()
    before = status_bytes("VmRSS")
    loaded = load_model(path, dtype=dtype)
    gc.collect()
    after, peak = status_bytes("VmRSS"), status_bytes("VmHWM")
    sys.stdout.write(f"{peak - before} {after - before} {loaded.config.layers}\n")


if __name__ == "__main__":
    main()
