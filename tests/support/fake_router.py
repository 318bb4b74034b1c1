"""A router without anything behind it: answers over real gRPC as a test scripts it."""

import threading
from collections.abc import Callable, Iterator
from concurrent import futures

import grpc
from google.protobuf import duration_pb2
from grpc_status import rpc_status

from baton import errors
from baton.v1 import inference_pb2, inference_pb2_grpc, sampling_pb2, worker_pb2

Answer = inference_pb2.GenerateResponse
Script = Callable[[inference_pb2.GenerateRequest], Iterator[Answer]]


def delta(text: str, *tokens: sampling_pb2.SampledToken | int, choice: int = 0) -> Answer:
    """A delta with tokens, or token ids."""
    sampled = [sampling_pb2.SampledToken(token_id=t) if isinstance(t, int) else t for t in tokens]
    return Answer(delta=inference_pb2.GenerateDelta(text=text, tokens=sampled, choice=choice))


def accepted(request: inference_pb2.GenerateRequest, seed: int = 5) -> Answer:
    """The word that a request was let in."""
    half = duration_pb2.Duration(nanos=500_000_000)
    return Answer(
        accepted=inference_pb2.GenerateAccepted(
            request_id=request.request_id or "made-up",
            seed=request.resume_from.seed or request.sampling.seed or seed,
            predicted_ttft=half,
        )
    )


def ended(index: int = 0, **fields) -> inference_pb2.CompletedChoice:
    """The end of a choice, by an end token unless told otherwise."""
    known = {"finish_reason": sampling_pb2.FINISH_REASON_STOP, "completion_tokens": 2}
    return inference_pb2.CompletedChoice(index=index, **(known | fields))


def completed(request: inference_pb2.GenerateRequest, *choices, **fields) -> Answer:
    """A completion that echoes the request's id and seed; of one choice unless told otherwise."""
    half = duration_pb2.Duration(nanos=500_000_000)
    known = {
        "choices": choices or (ended(),),
        "usage": inference_pb2.Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=1),
        "timings": inference_pb2.Timings(
            queue=half, total=duration_pb2.Duration(seconds=2), prefill_worker="prefill-0"
        ),
        "request_id": request.request_id or "made-up",
        "seed": request.sampling.seed,
    }
    return Answer(completed=inference_pb2.GenerateCompleted(**(known | fields)))


def two_tokens(request: inference_pb2.GenerateRequest) -> Iterator[Answer]:
    """A short, good answer."""
    yield accepted(request)
    yield delta("Hello", 7)
    yield delta(" sea", 8)
    yield completed(request)


class FakeRouter(inference_pb2_grpc.InferenceServiceServicer):
    """Runs a server on a free port while it is entered."""

    def __init__(self, script: Script = two_tokens, address: str = "127.0.0.1:0") -> None:
        self.script = script
        self.fleet = inference_pb2.GetFleetResponse()
        self.ended: list[inference_pb2.RequestReport] = []
        self.default_sampling = sampling_pb2.SamplingParams(temperature=0.5, top_k=4)
        self.interactive_targets = inference_pb2.Targets(
            ttft=duration_pb2.Duration(seconds=2), itl=duration_pb2.Duration(nanos=250_000_000)
        )
        self.requests: list[inference_pb2.GenerateRequest] = []
        self.tokenized: list[inference_pb2.TokenizeRequest] = []
        self.checked: list[bool] = []
        self.trailing: list[tuple[str, str]] = []
        """Metadata that comes with the end of each generation."""
        self.metadata: list[dict[str, str]] = []
        """What came with each generation."""
        self.model_error: errors.BatonError | None = None
        self.tool_format = inference_pb2.TOOL_FORMAT_UNSPECIFIED
        self.cancelled = threading.Event()
        """Set once a client cancelled a call."""
        self.finished = threading.Event()
        """Set once a call ended with OK."""
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(address)
        self.address = f"127.0.0.1:{port}"

    def __enter__(self) -> "FakeRouter":
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()

    def Generate(self, request, context):
        self.requests.append(request)
        self.metadata.append({key: str(value) for key, value in context.invocation_metadata()})
        context.set_trailing_metadata(tuple(self.trailing))
        context.add_callback(lambda: None if self.finished.is_set() else self.cancelled.set())
        try:
            yield from self.script(request)
        except errors.BatonError as error:
            context.abort_with_status(rpc_status.to_status(errors.to_status(error)))
        self.finished.set()

    def GetModel(self, request, context):
        if self.model_error is not None:
            context.abort_with_status(rpc_status.to_status(errors.to_status(self.model_error)))
        limits = worker_pb2.ModelLimits(
            name="tiny", vocab_size=300, context_tokens=512, eos_token_ids=[1, 2]
        )
        return inference_pb2.GetModelResponse(
            model=limits,
            has_chat_template=True,
            default_max_tokens=64,
            default_sampling=self.default_sampling,
            interactive_targets=self.interactive_targets,
            tool_format=self.tool_format,
        )

    def Tokenize(self, request, context):
        self.tokenized.append(request)
        texts = [f"{byte:c}".encode() for byte in request.text.encode()]
        return inference_pb2.TokenizeResponse(token_ids=list(request.text.encode()), texts=texts)

    def Detokenize(self, request, context):
        if max(request.token_ids, default=0) >= 300:
            error = errors.InvalidRequest("token_ids[0]", "is not a token")
            context.abort_with_status(rpc_status.to_status(errors.to_status(error)))
        return inference_pb2.DetokenizeResponse(
            text=bytes(request.token_ids).decode(errors="replace")
        )

    def GetFleet(self, request, context):
        self.checked.append(request.check_integrity)
        return self.fleet

    def ListRequests(self, request, context):
        ended = self.ended[request.after :]
        return inference_pb2.ListRequestsResponse(
            requests=ended[-request.limit :], sequence=len(self.ended)
        )
