"""Block size and chunk size on this machine: what each costs prefill and decode.

    python -m bench.engine_shapes MODEL [--threads N] [--rounds N]

Prints two tables of medians. Block size: time of a decode step at a context of 1,024 tokens,
alone and in a batch of eight, time of a 1,024-token prompt, and bytes of a block. Chunk size:
time of a 2,048-token prompt by itself, and the longest step that it causes, which is what it adds
to a running stream's inter-token latency.
"""

import argparse
import itertools
import statistics
import time
from pathlib import Path

import torch

from engine import Engine, EngineConfig, Request, SamplingParams
from engine.loader import load_model

_IDS = itertools.count()


def begin(engine: Engine, prompt_tokens: int, max_tokens: int) -> None:
    """Starts a sequence whose prompt is in no cache."""
    number = next(_IDS)
    prompt = tuple(5 + (i * 31 + number * 7) % 5000 for i in range(prompt_tokens))
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    request = Request(f"r{number}", prompt, sampling, salt=number.to_bytes(4, "little"))
    engine.admit(request)
    engine.start(request.request_id)


def steps(engine: Engine) -> list[float]:
    """Runs everything; milliseconds of each step."""
    times = []
    while engine.has_work:
        start = time.perf_counter()
        engine.step()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def decode_ms(engine: Engine, batch: int, tokens: int = 12) -> float:
    """Median decode step at a context of 1,024 tokens."""
    for _ in range(batch):
        begin(engine, 1024, tokens)
    return statistics.median(steps(engine)[-(tokens - 2) :])


def prefill_ms(engine: Engine, prompt_tokens: int) -> tuple[float, float]:
    """A prompt's time, and its longest step."""
    begin(engine, prompt_tokens, 1)
    times = steps(engine)
    return sum(times), max(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    model = load_model(options.model, dtype=torch.bfloat16)

    def engine(**config: int) -> Engine:
        return Engine(
            model,
            EngineConfig(
                dtype=torch.bfloat16, threads=options.threads, kv_bytes=512 * 2**20, **config
            ),
        )

    blocks = {size: engine(block_size=size, max_step_tokens=256) for size in (8, 16, 32, 64, 128)}
    rows: dict[int, list[tuple[float, float, float]]] = {size: [] for size in blocks}
    for one in blocks.values():
        prefill_ms(one, 1024)
    for _ in range(options.rounds):
        for size, one in blocks.items():
            rows[size].append((decode_ms(one, 1), decode_ms(one, 8), prefill_ms(one, 1024)[0]))
    print("block  KiB/block by group  decode x1  decode x8  prefill 1024   (ms)")
    for size, one in blocks.items():
        kib = [one.layout.block_bytes(g) // 1024 for g in range(len(one.layout.groups))]
        single, eight, prefill = (
            statistics.median(column) for column in zip(*rows[size], strict=True)
        )
        print(f"{size:5}  {kib!s:18}  {single:9.1f}  {eight:9.1f}  {prefill:12.0f}")

    chunks = {size: engine(max_step_tokens=size) for size in (64, 128, 256, 512, 1024)}
    results: dict[int, list[tuple[float, float]]] = {size: [] for size in chunks}
    for one in chunks.values():
        prefill_ms(one, 2048)
    for _ in range(options.rounds):
        for size, one in chunks.items():
            results[size].append(prefill_ms(one, 2048))
    print("chunk  prefill 2048  longest step   (ms)")
    for size, times in results.items():
        whole, longest = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"{size:5}  {whole:12.0f}  {longest:12.0f}")


if __name__ == "__main__":
    main()
