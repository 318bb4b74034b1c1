"""`baton status`: the processes of a running Baton, what they hold and what they did."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from baton import errors
from baton._calls import DEFAULT_ADDRESS
from baton.cli.connect import Connection, connects
from baton.cli.plain import fail, plain_errors
from baton.cli.supervised import Supervised
from baton.cli.wire_json import to_json
from baton.local.options import format_bytes
from baton.local.paths import RunDir
from baton.local.state import Phase, ProcessState, State
from baton.v1 import inference_pb2
from baton.values import ROLES, seconds


@plain_errors
@connects
def status(
    connection: Connection,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Check the integrity of every process's structures.")
    ] = False,
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Its --run-dir, where `baton up` was given one; says its address too."),
    ] = None,
) -> None:
    """Show the processes of a running Baton, what they hold and what they did."""
    if run_dir is not None and connection.address == DEFAULT_ADDRESS:
        connection = replace(connection, address=_address_in(run_dir))
    address = connection.address
    with connection.client() as client:
        try:
            fleet = client.fleet(check_integrity=check)
        except errors.Unavailable as error:
            if error.reason != "UNREACHABLE":
                raise
            fail(_not_running(address, run_dir))
    if as_json:
        typer.echo(json.dumps(to_json(fleet), indent=2))
    else:
        _show(fleet, address, Supervised.at(address, run_dir))
    if broken := problems(fleet):
        fail("; ".join(broken))
    if check and not as_json:
        typer.echo(f"integrity: nothing is wrong in {_checked(fleet)} processes")


def _address_in(run_dir: Path) -> str:
    """Where the router of the Baton in `run_dir` serves; the default where none is there."""
    state = State.read(RunDir(run_dir.absolute()))
    return state.address if state is not None else DEFAULT_ADDRESS


def _not_running(address: str, run_dir: Path | None) -> str:
    supervised = Supervised.at(address, run_dir)
    if supervised is not None:
        state = supervised.state
        doing = "starting" if state.phase is Phase.STARTING else state.phase
        return f"Baton at {address} is {doing} (pid {state.supervisor.pid}), and does not answer"
    return f"Baton is not running at {address}. `baton up` starts it"


def _checked(fleet: inference_pb2.GetFleetResponse) -> int:
    """Processes that checked themselves: the router and all that answered."""
    return 1 + sum(one.HasField("status") for one in [*fleet.workers, *fleet.transfers])


def problems(fleet: inference_pb2.GetFleetResponse) -> list[str]:
    """What is wrong with a fleet, one line each."""
    found = [f"{one.record.worker_id}: {one.error}" for one in fleet.workers if one.error]
    found += [f"transfer {one.address}: {one.error}" for one in fleet.transfers if one.error]
    if not fleet.queue.redis_available:
        found.append("Redis does not answer")
    return found


def _show(
    fleet: inference_pb2.GetFleetResponse, address: str, supervised: Supervised | None
) -> None:
    # A pipe has no width: as wide as it takes, so that nothing is cut.
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    planner = supervised.planner if supervised is not None else None
    console.print(_processes(fleet, address, planner))
    console.print(_work(fleet))
    for transfer in fleet.transfers:
        if transfer.HasField("status"):
            has = transfer.status
            used = sum(segment.used_bytes for segment in has.segments)
            size = sum(segment.size_bytes for segment in has.segments)
            console.print(
                f"transfer {transfer.address}: {has.blobs} blobs ({has.leased_blobs} leased), "
                f"{has.leases} leases, {has.reservations} reservations, "
                f"{format_bytes(used)} of {format_bytes(size)} used, "
                f"{has.committed_blobs} committed, {has.acquired_blobs} given out, "
                f"{has.evicted_blobs} evicted, {has.corrupt_blobs} corrupt",
                highlight=False,
            )
    console.print(_requests(fleet), highlight=False)
    if supervised is not None and planner is not None:
        console.print(supervised.wanted(), highlight=False)
    if degraded := fleet.queue.degraded:
        console.print(f"degraded: {degraded}", style="red", highlight=False)


def _requests(fleet: inference_pb2.GetFleetResponse) -> str:
    queue, router = fleet.queue, fleet.router
    return (
        f"queue: {queue.waiting} waiting ({seconds(queue.queued_work):.1f} s of prompts), "
        f"{queue.turns} turns, {queue.claims} claims\n"
        f"requests: {router.running_requests} running, {router.completed_requests} completed "
        f"({router.ttft_held} within TTFT, {router.itl_held} within ITL), "
        f"{router.cancelled_requests} cancelled, {router.failed_requests} failed, "
        f"{router.refused_requests} refused, {router.limited_requests} limited, "
        f"{router.degraded_requests} degraded\n"
        f"sequences: {router.retried_legs} retried, {router.resumed_sequences} resumed, "
        f"{router.recomputed_sequences} recomputed, {router.migrated_sequences} migrated, "
        f"{router.local_prompts} prompts beside decode"
    )


def _processes(
    fleet: inference_pb2.GetFleetResponse, address: str, planner: ProcessState | None
) -> Table:
    table = Table("process", "role", "pid", "address", "health", "memory", box=None)
    router = fleet.router
    table.add_row(
        router.router_id,
        "router",
        str(router.pid),
        address,
        "ok",
        format_bytes(router.resident_bytes),
    )
    for worker in fleet.workers:
        record = worker.record
        table.add_row(
            record.worker_id,
            ROLES.get(record.role, "?"),
            str(record.pid),
            record.address,
            _health(worker),
            format_bytes(worker.status.resident_bytes) if worker.HasField("status") else "",
        )
    for transfer in fleet.transfers:
        pid = str(transfer.status.pid) if transfer.HasField("status") else ""
        health = transfer.error or ("ok" if pid else "no answer")
        table.add_row("transfer", "transfer", pid, transfer.address, health, "")
    redis = "ok" if fleet.queue.redis_available else "no answer"
    table.add_row("redis", "redis", "", "", redis, "")
    if planner is not None:
        health = "ok" if planner.ready else "starting"
        table.add_row("planner", "planner", str(planner.pid), planner.address, health, "")
    return table


def _health(worker: inference_pb2.FleetWorker) -> str:
    if worker.error:
        return worker.error
    if not worker.HasField("status"):
        return "no answer"
    return "draining" if worker.record.draining else "ok"


def _work(fleet: inference_pb2.GetFleetResponse) -> Table:
    table = Table(
        "worker", "running", "waiting", "blocks used/cached/total", "steps", "prefilled",
        "sampled", "cached", "published", "fetched", box=None,
    )  # fmt: skip
    for worker in fleet.workers:
        if not worker.HasField("status"):
            continue
        has = worker.status
        blocks = ", ".join(
            f"{group.name} {group.used_blocks}/{group.cached_blocks}/{group.total_blocks}"
            for group in has.kv_groups
        )
        counts = (
            has.steps, has.prefilled_tokens, has.sampled_tokens, has.cached_tokens,
            has.published_blobs, has.fetched_blobs,
        )  # fmt: skip
        table.add_row(
            worker.record.worker_id,
            str(has.running_sequences),
            str(has.waiting_sequences),
            blocks,
            *map(str, counts),
        )
    return table
