"""`baton up`: starts a whole Baton on this machine."""

import contextlib
import signal
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from baton.cli.plain import FAILED, INTERRUPTED, plain_errors
from baton.cli.progress import progress_view
from baton.local.guard import Guard
from baton.local.options import UpOptions, parse_bytes
from baton.local.problem import Problem
from baton.local.state import Kind, State
from baton.local.up import Detached, Interrupted, Patience, Prepared, Run, prepare, reserved


class Dtype(StrEnum):
    """Number formats of weights and KV."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


def _size(text: str) -> str:
    try:
        parse_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


@plain_errors
def up(
    model: Annotated[str, typer.Option(help="`demo`, a directory, or a .gguf file.")] = "demo",
    name: Annotated[
        str | None, typer.Option(help="Name to serve it under; else its file's.")
    ] = None,
    chat_template: Annotated[
        Path | None, typer.Option(help="File of a chat template to take, not the model's.")
    ] = None,
    prefill: Annotated[
        int | None, typer.Option(min=0, help="Prefill workers; else 1, or 0 if aggregated.")
    ] = None,
    decode: Annotated[int, typer.Option(min=1, help="Decode workers.")] = 1,
    aggregated: Annotated[
        bool, typer.Option("--aggregated", help="Send every prompt straight to decode workers.")
    ] = False,
    hosts: Annotated[
        int, typer.Option(min=1, help="Transfer services, with the workers split among them.")
    ] = 1,
    routers: Annotated[
        int, typer.Option(min=1, help="Routers; the first listens on --grpc-port.")
    ] = 1,
    planner: Annotated[
        bool,
        typer.Option("--planner", help="Start further workers under load, and stop them again."),
    ] = False,
    max_prefill: Annotated[
        int | None,
        typer.Option(min=1, help="Most prefill workers under a planner; else twice --prefill."),
    ] = None,
    max_decode: Annotated[
        int | None,
        typer.Option(min=1, help="Most decode workers under a planner; else twice --decode."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Compute threads of each worker; else its share.")
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Of weights and KV.")] = Dtype.BFLOAT16,
    redis: Annotated[str | None, typer.Option(help="URL of a Redis; else an embedded one.")] = None,
    fleet: Annotated[str | None, typer.Option(help="Name of the fleet in that Redis.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    grpc_port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 7600,
    http_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the OpenAI-compatible gateway.")
    ] = 8000,
    no_gateway: Annotated[bool, typer.Option("--no-gateway", help="Serve gRPC alone.")] = False,
    kv_memory: Annotated[
        str, typer.Option(callback=_size, help="KV memory of each worker.")
    ] = "512MiB",
    shared_memory: Annotated[
        str, typer.Option(callback=_size, help="Shared memory of each worker, for handoffs.")
    ] = "256MiB",
    block_size: Annotated[int, typer.Option(min=1, max=1024, help="Tokens of a KV block.")] = 16,
    ttft_target: Annotated[
        float,
        typer.Option(
            min=0.01,
            help="Seconds to the first token for interactive requests that set no target; what "
            "can't be served by then is refused at once.",
        ),
    ] = 10.0,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds that running requests may take at the end.")
    ] = 10.0,
    api_keys: Annotated[
        Path | None,
        typer.Option(help="File of API keys, one of which every client needs; see `baton key`."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate for TLS, in every process.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's key.")] = None,
    tls_ca: Annotated[Path | None, typer.Option(help="CA that signed the certificate.")] = None,
    tls_server_name: Annotated[
        str, typer.Option(help="Name in the certificate, where it does not name 127.0.0.1.")
    ] = "",
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Let other machines reach it in plain text (--host)."),
    ] = False,
    run_dir: Annotated[
        Path | None, typer.Option(help="For logs and state; else one of the port's.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when ready; `baton down` stops it.")
    ] = False,
    service_flag: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND:FLAG",
            help="A flag for services, such as `router:--ttft-interactive-s=1`; `worker:` is for "
            "both roles. `python -m services.router --help` lists a service's flags.",
        ),
    ] = None,
) -> None:
    """Start Baton on this machine: a router, prefill and decode workers, and what they need."""
    options = UpOptions(
        model=model,
        name=name,
        chat_template=chat_template,
        prefill=prefill,
        decode=decode,
        aggregated=aggregated,
        hosts=hosts,
        routers=routers,
        planner=planner,
        max_prefill=max_prefill,
        max_decode=max_decode,
        threads=threads,
        dtype=dtype,
        redis=redis,
        fleet=fleet,
        host=host,
        grpc_port=grpc_port,
        http_port=None if no_gateway else http_port,
        kv_bytes=parse_bytes(kv_memory),
        segment_bytes=parse_bytes(shared_memory),
        block_size=block_size,
        ttft_target=ttft_target,
        grace=grace,
        directory=run_dir,
        guard=Guard(api_keys, tls_cert, tls_key, tls_ca, tls_server_name, insecure),
        service_flags=tuple(service_flag or ()),
    )
    with _patience() as patience:
        try:
            if detach:
                _in_background(options, patience)
            else:
                _here(options, patience)
        except Interrupted:
            raise typer.Exit(INTERRUPTED) from None


@contextlib.contextmanager
def _patience() -> Iterator[Patience]:
    patience = Patience()
    before = {
        number: signal.signal(number, lambda *_: patience.ask())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield patience
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _here(options: UpOptions, patience: Patience) -> None:
    with reserved(options):
        prepared = prepare(options, typer.echo)
        run = Run(prepared, _say)
        try:
            run.start()
            with progress_view() as view:
                state = run.until_ready(view, patience)
            _show_ready(state, prepared)
            typer.echo("Ctrl-C stops it")
            run.watch(patience)
            _say("stopping")
        except Interrupted:
            _say("stopping")
            raise
        except Problem as problem:  # told before the time that stopping takes
            _say(f"baton: {problem}")
            raise typer.Exit(FAILED) from None
        finally:
            killed = run.stop(patience)
            if killed:
                _say(f"had to kill {', '.join(killed)}")


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # a terminal that was closed must not keep us from stopping
        typer.echo(text, err=True)


def _in_background(options: UpOptions, patience: Patience) -> None:
    with reserved(options):
        prepared = prepare(options, typer.echo)
    detached = Detached(options)
    with progress_view() as view:
        state = detached.until_ready(view, patience)
    _show_ready(state, prepared)
    where = f" --run-dir {options.directory}" if options.directory else ""
    port = f" --grpc-port {options.grpc_port}" if options.grpc_port != 7600 else ""
    typer.echo(f"`baton down{where or port}` stops it")


def _show_ready(state: State, prepared: Prepared) -> None:
    options, plan = prepared.options, prepared.plan
    typer.echo(f"Baton serves {state.model} ({options.dtype}) at {state.address}")
    if options.http_address is not None:
        scheme = "http" if options.guard.tls is None else "https"
        typer.echo(f"OpenAI clients reach it at {scheme}://{options.http_address}/v1")
    for process in state.processes:
        note = ""
        if process.kind in (Kind.PREFILL, Kind.DECODE):
            cores = ",".join(map(str, plan.cores[process.name]))
            note = f"  threads {plan.threads}" + (f", cores {cores}" if cores else "")
        elif process.kind is Kind.PLANNER:
            note = f"  prefill up to {options.most_prefill}, decode up to {options.most_decode}"
        typer.echo(f"  {process.name:<12} {process.address:<24} pid {process.pid}{note}")
    typer.echo(f"  logs in {options.run_dir.logs}")
