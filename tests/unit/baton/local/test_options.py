"""Options there and back, and sizes."""

from pathlib import Path

import pytest
import typer.main

from baton.cli import app
from baton.local.options import UpOptions, format_bytes, parse_bytes


def parsed(arguments):
    up = typer.main.get_command(app).commands["up"]
    return up.make_context("up", list(arguments)).params


def test_arguments_mean_the_same_to_a_copy_of_the_program():
    options = UpOptions(
        model="a b.gguf", name="n", prefill=0, decode=3, aggregated=True, hosts=2, threads=2,
        routers=3,
        dtype="float32", redis="redis://x", fleet="f", host="0.0.0.0", grpc_port=7,
        kv_bytes=1234, segment_bytes=99, block_size=8, grace=1.5, directory=Path("/r"),
        chat_template=Path("c.jinja"),
        service_flags=("router:--a=1", "worker:--b=2"),
        planner=True, max_prefill=4, max_decode=5,
    )  # fmt: skip
    found = parsed(options.arguments())
    assert found["model"] == "a b.gguf"
    assert (found["prefill"], found["decode"], found["threads"]) == (0, 3, 2)
    assert found["aggregated"] is True
    assert (found["hosts"], found["routers"]) == (2, 3)
    assert found["dtype"].value == "float32"
    assert (found["name"], found["redis"], found["fleet"]) == ("n", "redis://x", "f")
    assert (found["host"], found["grpc_port"]) == ("0.0.0.0", 7)
    assert parse_bytes(found["kv_memory"]) == 1234
    assert parse_bytes(found["shared_memory"]) == 99
    assert (found["block_size"], found["grace"]) == (8, 1.5)
    assert (found["run_dir"], found["chat_template"]) == (Path("/r"), Path("c.jinja"))
    assert list(found["service_flag"]) == ["router:--a=1", "worker:--b=2"]
    assert (found["planner"], found["max_prefill"], found["max_decode"]) == (True, 4, 5)
    assert found["detach"] is False


def test_defaults_of_the_command_are_those_of_the_options():
    sizes = ("kv_memory", "shared_memory")
    explicit, default = parsed(UpOptions().arguments()), parsed([])
    for found in (explicit, default):
        found |= {name: parse_bytes(found[name]) for name in sizes}
    assert explicit == default


def test_a_planner_may_double_the_workers_unless_told_otherwise():
    assert UpOptions(prefill=2, decode=3).most_workers == 5
    options = UpOptions(prefill=2, decode=3, planner=True)
    assert (options.most_prefill, options.most_decode, options.most_workers) == (4, 6, 10)
    options = UpOptions(planner=True, max_prefill=1, max_decode=5)
    assert (options.most_prefill, options.most_decode) == (1, 5)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1GiB", 2**30), ("1.5 MiB", 3 * 2**19), ("2kib", 2048), ("77", 77), ("77B", 77)],
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1MiB", "0", "1TiB", "1 elephant", "nan", "1e99"])
def test_wrong_sizes_say_so(text):
    with pytest.raises(ValueError, match="size"):
        parse_bytes(text)


def test_sizes_for_people():
    assert format_bytes(512) == "512 B"
    assert format_bytes(3 * 2**19) == "1.5 MiB"
    assert format_bytes(2**30) == "1 GiB"


def test_clients_on_this_machine_cannot_call_a_wildcard():
    assert UpOptions(host="0.0.0.0").address == "127.0.0.1:7600"
    assert UpOptions(host="192.0.2.1").address == "192.0.2.1:7600"
    assert UpOptions(host="[::]").reachable("[::]:20000") == "127.0.0.1:20000"
