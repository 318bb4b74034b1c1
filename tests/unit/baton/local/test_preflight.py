"""What is found before anything starts, in words."""

import os
import socket

import pytest

from baton.local import preflight
from baton.local.options import UpOptions
from baton.local.plan import free_port
from baton.local.problem import Problem
from tests.support.fake_router import FakeRouter


def test_a_free_port_is_fine():
    preflight.check_ports(UpOptions(http_port=None, grpc_port=free_port()))


def test_a_port_taken_by_a_baton_names_its_model():
    with FakeRouter() as router:
        port = int(router.address.rpartition(":")[2])
        with pytest.raises(Problem, match=f"port {port} is taken by a Baton that serves tiny"):
            preflight.check_ports(UpOptions(http_port=None, grpc_port=port))


def test_a_port_taken_by_something_else():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(Problem, match=r"taken by another program.*--grpc-port"):
            preflight.check_ports(UpOptions(http_port=None, grpc_port=port))


def test_a_taken_http_port_says_which_flag_helps():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(Problem, match=r"--http-port.*--no-gateway"):
            preflight.check_ports(UpOptions(http_port=port, grpc_port=free_port()))


def test_an_address_that_is_not_ours():
    with pytest.raises(Problem, match=r"cannot listen on 192.0.2.1"):
        preflight.check_ports(UpOptions(http_port=None, host="192.0.2.1", grpc_port=free_port()))


def test_shared_memory_that_is_too_small_says_how_much(tmp_path):
    found = os.statvfs(tmp_path)
    available = found.f_bavail * found.f_frsize
    preflight.check_shared_memory(UpOptions(segment_bytes=4096), tmp_path)
    with pytest.raises(Problem, match=r"2 workers .* need .* are free.*--shared-memory"):
        preflight.check_shared_memory(UpOptions(segment_bytes=available), tmp_path)


def test_shared_memory_is_counted_for_what_hosts_read_too(tmp_path):
    found = os.statvfs(tmp_path)
    third = found.f_bavail * found.f_frsize // 3
    preflight.check_shared_memory(UpOptions(segment_bytes=third), tmp_path)
    with pytest.raises(Problem, match="2 workers and 2 hosts with"):
        preflight.check_shared_memory(UpOptions(segment_bytes=third, hosts=2), tmp_path)


def test_memory_is_counted_for_all_that_a_planner_may_start(tmp_path):
    found = os.statvfs(tmp_path)
    third = found.f_bavail * found.f_frsize // 3
    preflight.check_shared_memory(UpOptions(segment_bytes=third), tmp_path)
    with pytest.raises(Problem, match="4 workers with"):
        preflight.check_shared_memory(UpOptions(segment_bytes=third, planner=True), tmp_path)
    preflight.check_memory(UpOptions(kv_bytes=2**60))
    preflight.check_memory(UpOptions(kv_bytes=2**10, segment_bytes=2**10, planner=True))
    with pytest.raises(Problem, match=r"^5 workers, as many .* need .*--max-decode.*--kv-memory"):
        preflight.check_memory(UpOptions(kv_bytes=2**60, planner=True, max_decode=3))


def test_a_planner_needs_something_to_plan():
    preflight.check_planner(UpOptions())
    preflight.check_planner(UpOptions(planner=True))
    preflight.check_planner(UpOptions(planner=True, prefill=2, max_prefill=2, max_decode=7))
    with pytest.raises(Problem, match=r"--max-decode is for --planner: .* always 2"):
        preflight.check_planner(UpOptions(decode=2, max_decode=3))
    with pytest.raises(Problem, match=r"--max-prefill 1 is less than .* at the start \(2\)"):
        preflight.check_planner(UpOptions(planner=True, prefill=2, max_prefill=1))
    for nothing in (UpOptions(planner=True, aggregated=True), UpOptions(planner=True, prefill=0)):
        with pytest.raises(Problem, match="there are none to prefill"):
            preflight.check_planner(nothing)


def test_a_host_without_a_worker_is_refused():
    preflight.check_hosts(UpOptions(hosts=2))
    preflight.check_hosts(UpOptions(hosts=3, decode=2))
    with pytest.raises(Problem, match=r"--hosts 3 is more than there are workers \(2\)"):
        preflight.check_hosts(UpOptions(hosts=3))
    with pytest.raises(Problem, match="--hosts 2"):
        preflight.check_hosts(UpOptions(hosts=2, aggregated=True))


def test_a_chat_template_that_is_not_there(tmp_path):
    path = tmp_path / "c.jinja"
    with pytest.raises(Problem, match=r"--chat-template: there is no file .*c\.jinja"):
        preflight.check_chat_template(UpOptions(chat_template=path))
    path.write_text("")
    preflight.check_chat_template(UpOptions(chat_template=path))


def test_without_a_shared_memory_directory_there_is_nothing_to_check(tmp_path):
    preflight.check_shared_memory(UpOptions(segment_bytes=2**60), tmp_path / "none")


def test_missing_packages_are_named():
    preflight.check_installed(("json",), "serve")
    with pytest.raises(Problem, match=r"no_such_package.*\.\[serve,planner\]"):
        preflight.check_installed(("json", "no_such_package"), "serve,planner")


def test_what_serving_needs_is_installed_here():
    preflight.check_packages(UpOptions(planner=True))
    assert os.access(preflight.find_valkey(), os.X_OK)


def test_a_redis_that_does_not_answer():
    with pytest.raises(Problem, match=r"no Redis answers at redis://127.0.0.1"):
        preflight.check_redis(f"redis://127.0.0.1:{free_port()}/0")


def test_a_url_that_is_none():
    with pytest.raises(Problem, match="elephant://x is not a URL"):
        preflight.check_redis("elephant://x")
