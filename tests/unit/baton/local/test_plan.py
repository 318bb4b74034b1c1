"""What `baton up` starts, from its options alone."""

import itertools
from pathlib import Path

from baton.local.model import ServedModel
from baton.local.options import UpOptions
from baton.local.plan import free_port, make_plan, share_cores
from baton.local.state import Kind
from services.decode.settings import DecodeSettings
from services.gateway.settings import GatewaySettings
from services.planner.settings import PlannerSettings
from services.prefill.settings import PrefillSettings
from services.router.settings import RouterSettings
from services.transfer.settings import TransferSettings

MODEL = ServedModel(Path("/models/tiny"), "tiny")


def plan_of(cores=(0, 1), valkey=Path("/bin/valkey"), **options):
    ports = itertools.count(20_000)
    options = UpOptions(directory=Path("/run/b"), **options)
    return make_plan(options, MODEL, valkey=valkey, cores=cores, free_port=lambda: next(ports))


def flag(spec, name):
    (found,) = [part for part in spec.command if part.startswith(f"--{name}=")] or [None]
    return found and found.partition("=")[2]


def by_name(plan):
    return {spec.name: spec for spec in plan.specs}


def test_the_default_is_one_of_each():
    specs = by_name(plan_of())
    assert list(specs) == ["valkey", "transfer", "prefill-0", "decode-0", "router", "gateway"]
    assert specs["router"].address == "127.0.0.1:7600"
    assert "services.router" in specs["router"].command
    assert specs["gateway"].address == "127.0.0.1:8000"
    assert flag(specs["gateway"], "router") == "127.0.0.1:7600"
    assert flag(specs["router"], "model") == "/models/tiny"
    assert flag(specs["router"], "model-name") == "tiny"
    for name in ("prefill-0", "decode-0"):
        worker = specs[name]
        assert f"services.{worker.kind}" in worker.command
        assert flag(worker, "transfer") == specs["transfer"].address
        assert flag(worker, "redis") == specs["valkey"].address == "unix:///run/b/valkey.sock"
        assert flag(worker, "worker-id") == name
        assert flag(worker, "fleet") == flag(specs["router"], "fleet")
        assert flag(worker, "dtype") == "bfloat16"
    assert len({spec.address for spec in specs.values()}) == len(specs)


def test_workers_are_split_among_hosts_so_that_one_of_each_is_a_handoff_between_them():
    specs = by_name(plan_of(hosts=2))
    assert [name for name in specs if "transfer" in name] == ["transfer-0", "transfer-1"]
    first, second = specs["transfer-0"], specs["transfer-1"]
    assert first.address != second.address
    assert first.ready_file != second.ready_file
    assert flag(specs["prefill-0"], "transfer") == first.address
    assert flag(specs["decode-0"], "transfer") == second.address
    assert flag(first, "peer-segment-bytes") == flag(specs["decode-0"], "segment-bytes")
    assert flag(by_name(plan_of())["transfer"], "peer-segment-bytes") is None


def test_every_host_gets_workers():
    for prefill, decode, hosts in ((2, 2, 2), (1, 3, 2), (0, 3, 3), (2, 3, 4)):
        specs = by_name(plan_of(prefill=prefill, decode=decode, hosts=hosts))
        transfers = {spec.address for spec in specs.values() if spec.kind is Kind.TRANSFER}
        used = {flag(spec, "transfer") for spec in specs.values()} - {None}
        assert used == transfers
        assert len(transfers) == hosts


def test_several_routers_are_one_fleet_and_the_first_has_the_port():
    specs = by_name(plan_of(routers=3, grpc_port=7601, host="0.0.0.0", service_flags=["router:-x"]))
    routers = [spec for spec in specs.values() if spec.kind is Kind.ROUTER]
    assert [spec.name for spec in routers] == ["router-0", "router-1", "router-2"]
    assert routers[0].address == "0.0.0.0:7601"
    assert all(spec.address.startswith("0.0.0.0:") for spec in routers)
    assert len({spec.address for spec in specs.values()}) == len(specs)
    assert len({spec.ready_file for spec in routers}) == 3
    for name in ("redis", "fleet", "model"):
        assert len({flag(spec, name) for spec in routers}) == 1
    assert flag(routers[1], "fleet") == flag(specs["decode-0"], "fleet")
    assert all("-x" in spec.command for spec in routers)
    own = [spec.address.replace("0.0.0.0", "127.0.0.1") for spec in routers]
    assert flag(specs["gateway"], "router") == ",".join(own)


def test_all_tell_metrics_at_ports_of_their_own():
    specs = by_name(plan_of())
    for name in ("transfer", "prefill-0", "decode-0", "router"):
        assert flag(specs[name], "metrics-address") == "127.0.0.1:0"
    assert flag(specs["gateway"], "metrics-address") is None  # it has them at its own


def test_there_may_be_no_gateway():
    assert "gateway" not in by_name(plan_of(http_port=None))


def test_the_services_understand_their_flags():
    settings = {
        Kind.TRANSFER: TransferSettings,
        Kind.PREFILL: PrefillSettings,
        Kind.DECODE: DecodeSettings,
        Kind.ROUTER: RouterSettings,
        Kind.GATEWAY: GatewaySettings,
        Kind.PLANNER: PlannerSettings,
    }
    for aggregated in (False, True):
        plan = plan_of(
            aggregated=aggregated,
            prefill=1,
            dtype="float32",
            grpc_port=7601,
            hosts=2,
            planner=True,
            max_prefill=1,
            max_decode=1,
        )
        understood = {}
        for spec in plan.specs[1:]:
            arguments = spec.command[spec.command.index(f"services.{spec.kind}") + 1 :]
            understood[spec.kind] = found = settings[spec.kind](_cli_parse_args=list(arguments))
            assert found.address == spec.address
            assert found.ready_file == str(spec.ready_file)
            named = {part.partition("=")[0][2:].replace("-", "_") for part in arguments}
            assert named <= found.model_fields_set
        assert set(understood) == set(settings)
        assert understood[Kind.ROUTER].disaggregation == ("never" if aggregated else "auto")
        assert understood[Kind.DECODE].core_set == {1}
        assert understood[Kind.PREFILL].served_name == "tiny"


def test_a_chat_template_goes_to_the_routers():
    specs = by_name(plan_of(chat_template=Path("c.jinja")))
    assert flag(specs["router"], "chat-template") == str(Path.cwd() / "c.jinja")
    assert flag(by_name(plan_of())["router"], "chat-template") is None


def test_aggregated_has_no_prefill_worker_unless_asked():
    specs = by_name(plan_of(aggregated=True))
    assert "prefill-0" not in specs
    assert "--disaggregation=never" in specs["router"].command
    assert "prefill-0" in by_name(plan_of(aggregated=True, prefill=1))
    assert "--disaggregation=never" not in by_name(plan_of())["router"].command


def test_a_redis_of_ones_own_needs_no_valkey():
    specs = by_name(plan_of(valkey=None, redis="redis://there/0", fleet="mine"))
    assert "valkey" not in specs
    assert flag(specs["decode-0"], "redis") == "redis://there/0"
    assert flag(specs["decode-0"], "fleet") == flag(specs["router"], "fleet") == "mine"


def test_two_ports_are_two_fleets():
    one, two = (by_name(plan_of(grpc_port=port))["router"] for port in (7600, 7601))
    assert flag(one, "fleet") != flag(two, "fleet")


def test_cores_are_shared_out_only_when_there_are_enough():
    assert share_cores(2, 2, [3, 4, 5, 6, 7]) == [(3, 4), (5, 6)]
    assert share_cores(2, 2, [3, 4, 5]) == [(), ()]
    specs = by_name(plan_of(cores=(4, 5), decode=1))
    assert flag(specs["prefill-0"], "cores") == "4"
    assert flag(specs["decode-0"], "cores") == "5"
    assert flag(by_name(plan_of(cores=(4, 5), decode=2))["decode-1"], "cores") is None


def test_threads_are_the_share_of_the_cores_and_at_least_one():
    assert plan_of(cores=range(8)).threads == 4
    assert plan_of(cores=range(8), decode=3).threads == 2
    assert plan_of(cores=(0,), decode=3).threads == 1
    plan = plan_of(cores=range(8), threads=3)
    assert plan.threads == 3
    assert plan.cores == {"prefill-0": (0, 1, 2), "decode-0": (3, 4, 5)}
    assert flag(by_name(plan)["decode-0"], "threads") == "3"


def test_a_planner_is_told_how_many_there_may_be():
    specs = by_name(plan_of(planner=True, decode=2, ttft_target=3.0, http_port=None))
    assert list(specs)[-2:] == ["router", "planner"]
    planner = specs["planner"]
    assert planner.kind is Kind.PLANNER
    assert (flag(planner, "max-prefill"), flag(planner, "max-decode")) == ("2", "4")
    assert flag(planner, "replicas-file") == "/run/b/replicas.json"
    assert flag(planner, "state-file") == "/run/b/state.json"
    assert flag(planner, "ttft-target-s") == "3.0"
    for name in ("redis", "fleet"):
        assert flag(planner, name) == flag(specs["router"], name)
    assert "planner" not in by_name(plan_of())


def test_further_workers_are_as_the_first_ones_and_have_places_of_their_own():
    plan = plan_of(planner=True, cores=range(9), max_prefill=2, max_decode=2, hosts=2)
    assert [spec.name for spec in plan.specs if "code-" in spec.name] == ["decode-0"]
    assert plan.names(Kind.PREFILL) == ["prefill-0", "prefill-1"]
    assert plan.names(Kind.DECODE) == ["decode-0", "decode-1"]
    assert plan.threads == 2  # the share of four
    assert sorted(core for cores in plan.cores.values() for core in cores) == list(range(8))
    specs = by_name(plan)
    first, further = specs["decode-0"], plan.worker("decode-1")
    assert further.address not in {spec.address for spec in plan.specs}
    assert plan.worker("decode-1").address != further.address  # one that is free then
    own = ("address", "ready-file", "process-name", "worker-id", "cores", "progress-file")
    own = tuple(f"--{name}=" for name in (*own, "transfer"))

    def common(spec):
        return [part for part in spec.command if not part.startswith(own)]

    assert common(first) == common(further)
    assert flag(specs["prefill-0"], "transfer") != flag(first, "transfer")
    transfers = [flag(plan.worker(name), "transfer") for name in plan.slots]
    assert transfers[:2] == transfers[2:]  # in turn


def test_without_cores_for_all_none_has_any_of_its_own():
    plan = plan_of(planner=True, cores=(0, 1), threads=1)
    assert set(plan.cores.values()) == {()}


def test_further_flags_reach_their_service_alone():
    flags = ("router:--max-waiting=4", "worker:--max-sequences=2", "decode:--fetch-seconds=1")
    specs = by_name(plan_of(service_flags=flags))
    assert flag(specs["router"], "max-waiting") == "4"
    assert flag(specs["prefill-0"], "max-sequences") == "2"
    assert flag(specs["decode-0"], "max-sequences") == "2"
    assert flag(specs["decode-0"], "fetch-seconds") == "1"
    assert flag(specs["prefill-0"], "fetch-seconds") is None
    assert flag(specs["transfer"], "max-sequences") is None


def test_a_long_path_leaves_no_room_for_a_socket_so_a_port_is_taken():
    options = UpOptions(directory=Path("/run") / ("x" * 100))
    plan = make_plan(options, MODEL, valkey=Path("/v"), cores=(0,), free_port=lambda: 20_001)
    valkey = by_name(plan)["valkey"]
    assert valkey.kind is Kind.VALKEY
    assert valkey.address == "redis://127.0.0.1:20001"
    assert "unixsocket" not in " ".join(valkey.command)


def test_free_ports_can_be_listened_on():
    assert 20_000 <= free_port() < 32_000
