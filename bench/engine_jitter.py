"""Does relaying token streams disturb the engine when both share a process?

One decode engine runs N streams to their end while the same tokens are relayed over gRPC to a
client process. Measured is the time from step to step, in three arrangements:

    alone     the engine's thread, nobody relays: the floor
    thread    the engine is a thread of the process that relays
    process   the engine is a child process that sends each step's outputs through a pipe

Each arrangement runs in a process of its own, in turn, `--rounds` times; the engine's thread is
pinned to `--engine-core`, everything else to the other cores. Example:

    python -m bench.engine_jitter --model DIR_OR_GGUF --streams 1 8 32 --steps 200
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch

from baton.v1 import decode_pb2, decode_pb2_grpc
from engine.config import EngineConfig
from engine.engine import Engine
from engine.loop import EngineLoop
from engine.types import Request, SamplingParams, SequenceOutput
from services.common import rpc
from services.worker import messages
from services.worker.outbox import Outbox

ARRANGEMENTS = ("alone", "thread", "process")
PROMPT_TOKENS = 32
HandIn = Callable[[list[SequenceOutput]], None]


class TimedEngine:
    """An engine on its thread that notes when each step of all streams ended."""

    def __init__(self, options: argparse.Namespace, hand_in: HandIn) -> None:
        config = EngineConfig(
            kv_bytes=options.kv_bytes,
            max_sequences=max(options.streams, 1),
            max_step_tokens=options.streams * PROMPT_TOKENS,
            dtype=getattr(torch, options.dtype),
            threads=1,
        )
        self._options = options
        self._hand_in = hand_in
        self.times: list[float] = []
        self.done = threading.Event()
        engine = Engine.load(Path(options.model), config)
        self.loop = EngineLoop(engine, self._outputs, self._failed, {options.engine_core})
        self.loop.start()

    def start(self) -> None:
        """Admits all streams and lets them run."""
        sampling = SamplingParams(temperature=0.0, max_tokens=self._options.steps, ignore_eos=True)
        requests = [
            Request(
                str(number),
                tuple(3 + (number * 37 + i * 11) % 300 for i in range(PROMPT_TOKENS)),
                sampling,
            )
            for number in range(self._options.streams)
        ]

        def start_all(engine: Engine) -> None:
            for request in requests:
                engine.admit(request)
                engine.start(request.request_id)

        self.loop.call(start_all).add_done_callback(self._started)

    def _started(self, started: Future[None]) -> None:
        error = started.exception()
        if error is not None:
            self._failed(error)

    def _outputs(self, outputs: list[SequenceOutput]) -> None:
        if sum(bool(output.tokens) for output in outputs) == self._options.streams:
            self.times.append(time.perf_counter())
        self._hand_in(outputs)
        if any(output.finish_reason for output in outputs):
            self.done.set()

    def _failed(self, error: BaseException) -> None:
        print(f"the engine failed: {error!r}", file=sys.stderr)
        os._exit(1)


def engine_process(options: argparse.Namespace, pipe: Connection) -> None:
    """The child of the `process` arrangement."""
    timed = TimedEngine(options, pipe.send)
    pipe.send("ready")
    pipe.recv()
    timed.start()
    timed.done.wait()
    time.sleep(0.5)
    pipe.send(timed.times)
    pipe.recv()


class Relay(decode_pb2_grpc.DecodeServiceServicer):
    """Streams what the outbox has for a sequence, as the decode service does."""

    def __init__(self, outbox: Outbox, streams: int) -> None:
        self._outbox = outbox
        self._streams = streams
        self._open = 0
        self.all_open = asyncio.Event()

    async def Decode(  # noqa: N802 - named by the protocol
        self, request: decode_pb2.DecodeRequest, _: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[decode_pb2.DecodeResponse]:
        """Tokens of the sequence named by the request id."""
        stream = self._outbox.open(request.request_id)
        self._open += 1
        if self._open == self._streams:
            self.all_open.set()
        reason = None
        while reason is None:
            output = await stream.next()
            tokens = [messages.sampled_token(token) for token in output.tokens]
            yield decode_pb2.DecodeResponse(tokens=decode_pb2.DecodeTokens(tokens=tokens))
            reason = output.finish_reason


async def client(address: str, streams: int) -> None:
    """Reads all streams to their end."""
    async with rpc.channel(address) as channel:
        stub = decode_pb2_grpc.DecodeServiceStub(channel)

        async def read(number: int) -> None:
            async for _ in stub.Decode(decode_pb2.DecodeRequest(request_id=str(number))):
                pass

        await asyncio.gather(*(read(number) for number in range(streams)))


async def relayed(options: argparse.Namespace) -> tuple[list[float], float]:
    """Step times while a client process reads every stream, and the event loop's CPU seconds."""
    outbox = Outbox(lambda _: None)
    relay = Relay(outbox, options.streams)
    server = await rpc.serve(
        "127.0.0.1:0",
        [lambda to: decode_pb2_grpc.add_DecodeServiceServicer_to_server(relay, to)],
        [],
    )
    start, times = await asyncio.to_thread(
        _in_thread if options.arrangement == "thread" else _in_process, options, outbox
    )
    reader = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.engine_jitter", "--client", server.address,
        "--streams", str(options.streams), "--model", "-",
    )  # fmt: skip
    await relay.all_open.wait()
    start()
    cpu = time.thread_time()
    await reader.wait()
    cpu = time.thread_time() - cpu
    await server.stop(0)
    return await asyncio.to_thread(times), cpu


def _in_thread(
    options: argparse.Namespace, outbox: Outbox
) -> tuple[Callable[[], None], Callable[[], list[float]]]:
    timed = TimedEngine(options, outbox.hand_in)
    return lambda: threading.Thread(target=timed.start).start(), lambda: timed.times


def _in_process(
    options: argparse.Namespace, outbox: Outbox
) -> tuple[Callable[[], None], Callable[[], list[float]]]:
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(
        target=engine_process, args=(options, theirs), daemon=True
    )
    child.start()
    assert ours.recv() == "ready"
    result: list[list[float]] = []

    def read() -> None:
        while not result:
            received = ours.recv()
            if isinstance(received, list) and received and isinstance(received[0], float):
                result.append(received)
            else:
                outbox.hand_in(received)
        ours.send("end")

    thread = threading.Thread(target=read)
    thread.start()

    def times() -> list[float]:
        thread.join(60)
        return result[0]

    return lambda: ours.send("start"), times


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Runs one arrangement in this process."""
    if options.switch_interval:
        sys.setswitchinterval(options.switch_interval)
    os.sched_setaffinity(0, set(range(os.cpu_count() or 1)) - {options.engine_core})
    if options.arrangement == "alone":
        timed = TimedEngine(options, lambda _: None)
        timed.start()
        timed.done.wait()
        times, relay_s = timed.times, 0.0
    else:
        times, relay_s = asyncio.run(relayed(options))
    gaps = np.diff(np.array(times))[10:] * 1e3
    return {
        "steps": len(gaps),
        "mean": float(gaps.mean()),
        "p50": float(np.percentile(gaps, 50)),
        "p95": float(np.percentile(gaps, 95)),
        "p99": float(np.percentile(gaps, 99)),
        "max": float(gaps.max()),
        "relay_us": relay_s / (options.steps * options.streams) * 1e6,
    }


def compare(options: argparse.Namespace, streams: list[int]) -> None:
    """Runs every arrangement in turn and prints the medians over the rounds."""
    shown = ("mean", "p50", "p95", "p99", "max")
    print("ms from step to step, medians of rounds; relay: event loop's CPU us per token")
    print(f"{'streams':>7} {'arrangement':>12} {'steps':>6}" + "".join(f"{k:>9}" for k in shown)
          + f"{'relay':>8}")  # fmt: skip
    for count in streams:
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in options.arrangements}
        for _ in range(options.rounds):
            for name in options.arrangements:
                rounds[name].append(_run_apart(options, name, count))
        for name, results in rounds.items():
            row = {key: float(np.median([r[key] for r in results])) for key in results[0]}
            print(f"{count:>7} {name:>12} {row['steps']:>6.0f}"
                  + "".join(f"{row[key]:>9.2f}" for key in shown)
                  + f"{row['relay_us']:>8.0f}", flush=True)  # fmt: skip


def _run_apart(options: argparse.Namespace, name: str, streams: int) -> dict[str, float]:
    command = [
        sys.executable, "-m", "bench.engine_jitter", "--arrangement", name,
        "--model", options.model, "--streams", str(streams), "--steps", str(options.steps),
        "--dtype", options.dtype, "--kv-bytes", str(options.kv_bytes),
        "--engine-core", str(options.engine_core),
        "--switch-interval", str(options.switch_interval),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Compares the arrangements, or runs one part of a comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", required=True, help="Hugging Face directory or .gguf file")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kv-bytes", type=int, default=256 << 20)
    parser.add_argument("--engine-core", type=int, default=(os.cpu_count() or 1) - 1)
    parser.add_argument("--switch-interval", type=float, default=0.0, help="seconds; 0: Python's")
    parser.add_argument("--arrangements", nargs="+", choices=ARRANGEMENTS, default=ARRANGEMENTS)
    parser.add_argument("--arrangement", choices=ARRANGEMENTS, help=argparse.SUPPRESS)
    parser.add_argument("--client", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        asyncio.run(client(options.client, options.streams[0]))
    elif options.arrangement:
        options.streams = options.streams[0]
        print(json.dumps(measure(options)))
        sys.stdout.flush()
        with contextlib.suppress(Exception):
            os._exit(0)
    else:
        compare(options, options.streams)


if __name__ == "__main__":
    main()
