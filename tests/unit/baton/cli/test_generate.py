"""`baton generate` against a scripted router."""

import json
import signal
import subprocess
import sys
import threading

import pytest
from typer.testing import CliRunner

from baton import __version__, errors
from baton.cli import app
from baton.v1 import inference_pb2, sampling_pb2
from tests.support.fake_router import Answer, FakeRouter, completed, delta, ended

SOON = 20.0
COMMAND = [sys.executable, "-P", "-m", "baton.cli"]


def run(router, *arguments, **options):
    return CliRunner().invoke(
        app, ["generate", f"--address={router.address}", *arguments], **options
    )


def test_prints_the_text_and_a_line_end():
    with FakeRouter() as router:
        done = run(router, "Once")
    assert (done.exit_code, done.output) == (0, "Hello sea\n")
    (request,) = router.requests
    assert request.text == "Once"
    assert not request.sampling.HasField("temperature")


def test_a_model_without_a_temperature_of_its_own_gets_a_mild_one():
    with FakeRouter() as router:
        router.default_sampling.ClearField("temperature")
        assert run(router, "Once").exit_code == 0
        assert run(router, "Once", "--temperature=1").exit_code == 0
    mild, given = router.requests
    assert abs(mild.sampling.temperature - 0.7) < 1e-6
    assert given.sampling.temperature == 1


def test_text_that_ends_a_line_gets_no_other():
    def script(request):
        yield delta("Hello\n", 7)
        yield completed(request)

    with FakeRouter(script) as router:
        assert run(router, "Once").output == "Hello\n"


def test_options_reach_the_router():
    with FakeRouter() as router:
        done = run(
            router, "Once", "--max-tokens=3", "--temperature=0.5", "--top-k=4", "--top-p=0.9",
            "--min-p=0.1", "--seed=7", "--stop=a", "--stop=b c", "--min-tokens=1", "--ignore-eos",
            "--logprobs=2", "--model=tiny",
        )  # fmt: skip
    assert done.exit_code == 0
    (request,) = router.requests
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.top_k, sampling.seed) == (3, 4, 7)
    assert (sampling.min_tokens, sampling.logprobs, sampling.ignore_eos) == (1, 2, True)
    assert sampling.temperature == 0.5
    assert sampling.top_p == pytest.approx(0.9)
    assert sampling.min_p == pytest.approx(0.1)
    assert list(request.stop) == ["a", "b c"]
    assert request.model == "tiny"


def test_more_options_reach_the_router():
    with FakeRouter() as router:
        done = run(
            router, "Once", "--n=1", "--best-of=2", "--echo", "--repetition-penalty=1.5",
            "--presence-penalty=-0.5", "--frequency-penalty=0.25", "--bad-word=no",
            "--bad-word=no way", "--logit-bias=7=-5", "--logit-bias=8=0.5", "--prompt-logprobs=0",
        )  # fmt: skip
    assert done.exit_code == 0
    (request,) = router.requests
    sampling = request.sampling
    assert (request.n, request.best_of, request.echo) == (1, 2, True)
    assert sampling.repetition_penalty == 1.5
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (-0.5, 0.25)
    assert list(request.bad_words) == ["no", "no way"]
    assert dict(sampling.logit_bias) == {7: -5.0, 8: 0.5}
    assert sampling.HasField("prompt_logprobs")


def test_what_the_output_must_be_reaches_the_router(tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "integer"}')
    with FakeRouter() as router:
        assert run(router, "Once", f"--json-schema={schema}").exit_code == 0
        assert run(router, "Once", "--regex=[a-z]+").exit_code == 0
        both = run(router, "Once", "--regex=a", f"--json-schema={schema}")
        gone = run(router, "Once", f"--json-schema={tmp_path / 'gone'}")
    held = [request.sampling.constraint for request in router.requests]
    assert [one.WhichOneof("kind") for one in held] == ["json_schema", "regex"]
    assert held[0].json_schema == '{"type": "integer"}'
    assert held[1].regex == "[a-z]+"
    assert (both.exit_code, gone.exit_code) == (2, 2)


def test_options_for_the_scheduler_reach_the_router():
    with FakeRouter() as router:
        done = run(
            router, "Once", "--class=batch", "--ttft-target=2.5", "--itl-target=0.5",
            "--priority=-3", "--tenant=t",
        )  # fmt: skip
        wrong = run(router, "Once", "--class=urgent")
    assert done.exit_code == 0
    (request,) = router.requests
    assert request.request_class == inference_pb2.REQUEST_CLASS_BATCH
    assert request.ttft_target.ToMilliseconds() == 2500
    assert request.itl_target.ToMilliseconds() == 500
    assert (request.priority, request.tenant) == (-3, "t")
    assert wrong.exit_code == 1
    assert "request_class: must be one of interactive, batch" in wrong.stderr


@pytest.mark.parametrize("value", ["7", "7=", "=1", "a=1", "7=b"])
def test_a_bias_that_is_none(value):
    with FakeRouter() as router:
        done = run(router, "Once", f"--logit-bias={value}")
    assert done.exit_code == 2
    assert "ID=BIAS" in done.output
    assert router.requests == []


def test_choices_are_printed_one_after_another():
    def script(request):
        if request.echo:
            yield Answer(prompt=inference_pb2.GeneratePrompt(text="Once"))
        yield delta(" b", 1, choice=1)
        yield delta(" a", 2)
        yield delta("d", 3, choice=1)
        yield completed(request, ended(), ended(1))

    with FakeRouter(script) as router:
        assert run(router, "Once", "--n=2").output == "[0]  a\n[1]  bd\n"
        assert run(router, "Once", "--n=2", "--echo").output == "[0] Once a\n[1] Once bd\n"
        lines = run(router, "Once", "--n=2", "--echo", "--json").output.splitlines()
    shown = [json.loads(line) for line in lines]
    assert [one["event"] for one in shown] == ["prompt", "delta", "delta", "delta", "completed"]
    assert [one["choice"] for one in shown[1:-1]] == [1, 0, 1]


def test_the_echo_comes_before_the_text():
    def script(request):
        yield Answer(prompt=inference_pb2.GeneratePrompt(text="Once"))
        yield delta(" upon", 2)
        yield completed(request)

    with FakeRouter(script) as router:
        assert run(router, "Once", "--echo").output == "Once upon\n"


def test_stdin_and_chat():
    with FakeRouter() as router:
        assert run(router, "-", input="Grüße\nvom Meer").exit_code == 0
        assert run(router, "--chat", "Hi").exit_code == 0
        bad = run(router, "-", input=b"\xc3\x28")
    assert router.requests[0].text == "Grüße\nvom Meer"
    assert router.requests[1].chat.messages[0].role == "user"
    assert router.requests[1].chat.messages[0].content == "Hi"
    assert bad.exit_code == 1
    assert "stdin is not valid UTF-8" in bad.output
    assert len(router.requests) == 2


def test_json_is_one_event_a_line():
    def script(request):
        top = [sampling_pb2.TokenLogprob(token_id=3, logprob=-0.5, text=b"\xc3")]
        token = sampling_pb2.SampledToken(
            token_id=3, logprob=-0.5, top_logprobs=top, text="ü".encode()
        )
        yield delta("ü", token)
        yield completed(request)

    with FakeRouter(script) as router:
        done = run(router, "Once", "--json", "--logprobs=1", "--seed=4")
    first, last = (json.loads(line) for line in done.output.splitlines())
    top = [{"id": 3, "logprob": -0.5, "text": [195]}]
    token = {"id": 3, "logprob": -0.5, "top": top, "text": [195, 188]}
    assert first == {"event": "delta", "text": "ü", "tokens": [token], "choice": 0}
    assert last["event"] == "completed"
    assert last["choices"] == [
        {
            "index": 0, "finish_reason": "stop", "stop_string": None, "completion_tokens": 2,
            "decode_worker": "",
        }
    ]  # fmt: skip
    assert last["usage"] == {"prompt_tokens": 5, "completion_tokens": 2, "cached_tokens": 1}
    assert last["timings"]["queue"] == 0.5
    assert last["seed"] == 4


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (errors.InvalidRequest("sampling.top_p", "must be above 0"), "sampling.top_p: must be"),
        (errors.Exhausted("the queue is full", retry_after=1.5), "full (try again in 1.5 s)"),
        (errors.Unavailable("no worker serves it"), "no worker serves it"),
    ],
)
def test_errors_are_one_plain_line(error, line):
    def script(request):
        raise error
        yield

    with FakeRouter(script) as router:
        done = run(router, "Once")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.startswith("baton: ")
    assert line in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_error_after_some_text_ends_its_line_first():
    def script(request):
        yield delta("Once", 1)
        raise errors.Unavailable("gone")

    with FakeRouter(script) as router:
        done = run(router, "x")
    assert (done.exit_code, done.stdout, done.stderr) == (1, "Once\n", "baton: gone\n")


def test_values_that_the_wire_cannot_carry():
    with FakeRouter() as router:
        done = run(router, "Once", "--max-tokens=-1")
    assert done.exit_code == 1
    assert done.stderr.startswith("baton: sampling.max_tokens")


def test_a_deadline():
    release = threading.Event()

    def script(request):
        release.wait(SOON)
        yield completed(request)

    with FakeRouter(script) as router:
        done = run(router, "Once", "--timeout=0.2")
        release.set()
    assert done.exit_code == 1
    assert "the deadline passed" in done.stderr


def test_nobody_there():
    done = CliRunner().invoke(app, ["generate", "--address=127.0.0.1:9", "Once"])
    assert done.exit_code == 1
    assert (
        done.stderr == "baton: no answer from 127.0.0.1:9. Is Baton running? `baton up` starts it\n"
    )


@pytest.fixture
def endless():
    """A router that sends one token and then waits."""
    release = threading.Event()

    def script(request):
        yield delta("Hello", 7)
        release.wait(SOON)
        yield completed(request)

    with FakeRouter(script) as router:
        yield router
        release.set()


def start(router, *arguments):
    return subprocess.Popen(
        [*COMMAND, "generate", f"--address={router.address}", "Once", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_text_comes_as_it_is_made_and_ctrl_c_cancels(endless):
    process = start(endless)
    assert process.stdout is not None
    assert process.stdout.read(5) == b"Hello"  # while the generation still runs
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SOON)
    assert process.returncode == 130
    assert (out, err) == (b"\n", b"")
    assert endless.cancelled.wait(SOON)


def test_a_reader_that_left_cancels_quietly():
    def script(request):
        for number in range(100_000):
            yield delta(f"word{number} ", 7)
        yield completed(request)

    with FakeRouter(script) as router:
        process = start(router)
        assert process.stdout is not None
        assert process.stdout.read(4) == b"word"
        process.stdout.close()
        assert process.stderr is not None
        with process.stderr:
            assert process.stderr.read() == b""
        assert process.wait(SOON) == 1
        assert router.cancelled.wait(SOON)


def test_version_and_usage():
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"baton {__version__}\n"
    wrong = subprocess.run([*COMMAND, "generate"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "PROMPT" in wrong.stderr
