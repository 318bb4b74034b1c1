"""The heads of requests over real sockets: how long they may take, and how large they may be."""

import json
import socket

import pytest

from services.gateway import connections
from tests.support.fake_router import FakeRouter, accepted
from tests.support.gateway_server import GatewayServer

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n"
FILLER = b"X: " + b"a" * 1000 + b"\r\n"


@pytest.fixture(scope="module")
def server():
    def script(request):
        yield accepted(request)

    with FakeRouter(script) as router, GatewayServer(router) as running:
        yield running


@pytest.fixture
def connect(server):
    host, port = server.url.removeprefix("http://").split(":")
    opened = []

    def connecting():
        opened.append(socket.create_connection((host, int(port)), timeout=5))
        return opened[-1]

    yield connecting
    for one in opened:
        one.close()


def _all_of(connection):
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionResetError:  # it closed before it had read all that was sent
        pass
    return found


def _health(connection):
    connection.sendall(HEALTH + b"\r\n")
    answer = b""
    while not answer.endswith(b"}"):
        answer += connection.recv(65536)
    assert b"200 OK" in answer


@pytest.mark.parametrize("begun", [b"", b"GET /hea", HEALTH, HEALTH + FILLER])
def test_a_head_that_does_not_end_is_not_waited_for(connect, monkeypatch, begun):
    monkeypatch.setattr(connections, "HEAD_S", 0.05)
    connection = connect()
    connection.sendall(begun)
    assert _all_of(connection) == b""


def test_nor_one_that_follows_an_answer(connect, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_S", 0.05)
    connection = connect()
    _health(connection)
    connection.sendall(HEALTH)
    assert _all_of(connection) == b""


def test_a_connection_that_is_kept_may_rest_for_longer(connect, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_S", 0.05)
    connection = connect()
    for _ in range(2):
        _health(connection)
        connection.settimeout(0.15)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(5)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (HEALTH + FILLER * 60 + b"\r\n", 200),
        (HEALTH + FILLER * 70 + b"\r\n", 431),
        (HEALTH + FILLER * 300, 431),
        (HEALTH + b"X: " + b"a" * 300_000, 431),
        (b"GET /" + b"a" * 300_000, 431),
        (b"nothing that is HTTP\r\n\r\n", 400),
    ],
    ids=["large", "too large", "without end", "one field", "path", "no HTTP"],
)
def test_a_head_has_a_size(connect, head, status):
    connection = connect()
    connection.sendall(head)
    answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    if status != 200:
        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert error["type"] == "invalid_request_error"
        assert _all_of(connection) == b""


def test_bodies_and_pipelined_requests_are_no_part_of_a_head(connect):
    connection = connect()
    body = b'{"prompt": "' + b"a" * 2 * connections.MAX_HEAD_BYTES + b'"}'
    post = b"POST /v1/none HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    connection.sendall(
        post + body + (HEALTH + b"\r\n") * 50 + HEALTH + b"Connection: close\r\n\r\n"
    )
    answers = _all_of(connection)
    assert answers.count(b"404 Not Found") == 1
    assert answers.count(b"200 OK") == 51


@pytest.mark.parametrize("rest", [b"", b"a", b"a" * 900])
def test_the_rest_of_a_body_that_is_answered_is_not_waited_for(connect, monkeypatch, rest):
    monkeypatch.setattr(connections, "REST_S", 0.05)
    connection = connect()
    connection.sendall(b"POST /v1/none HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
    assert b"404 Not Found" in connection.recv(65536)
    connection.sendall(rest)
    rest_of_answer = _all_of(connection)
    assert b"HTTP/1.1" not in rest_of_answer


def test_nor_is_the_next_head_after_it(connect, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_S", 0.05)
    connection = connect()
    connection.sendall(b"POST /v1/none HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
    assert b"404 Not Found" in connection.recv(65536)
    connection.sendall(b"a" * 10)
    assert b"HTTP/1.1" not in _all_of(connection)
