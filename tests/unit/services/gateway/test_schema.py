"""Whatever fits or breaks the description at /openapi.json is answered as it says."""

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.fake_router import FakeRouter, accepted, completed, delta, ended
from tests.support.gateway_server import GatewayServer

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


def any_answer(request):
    choices = range(max(1, request.n))
    yield accepted(request)
    for choice in choices:
        yield delta("Hello", 7, choice=choice)
    yield completed(request, *(ended(choice) for choice in choices))


@pytest.fixture(scope="module")
def schema():
    with FakeRouter(any_answer) as router, GatewayServer(router) as server:
        yield schemathesis.openapi.from_url(f"{server.url}/openapi.json")


FEW = settings(
    max_examples=5,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


GETS = ["GET /health", "GET /ready", "GET /v1/models", "GET /v1/models/{name}"]
POSTS = [
    "POST /v1/completions",
    "POST /v1/chat/completions",
    "POST /v1/tokenize",
    "POST /v1/detokenize",
]


@pytest.mark.parametrize(
    ("label", "mode"),
    [
        *((label, GenerationMode.POSITIVE) for label in (*GETS, *POSTS)),
        *((label, GenerationMode.NEGATIVE) for label in POSTS),
    ],
)
def test_every_answer_is_as_described(schema, label, mode):
    operations = {one.ok().label: one.ok() for one in schema.get_all_operations()}

    @FEW
    @given(case=operations[label].as_strategy(generation_mode=mode))
    def check(case):
        response = case.call()
        case.validate_response(response, checks=CHECKS)
        if response.status_code >= 400 and label not in GETS[:2]:
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}

    check()


def test_every_route_is_described(schema):
    assert {one.ok().label for one in schema.get_all_operations()} == {*GETS, *POSTS}
