"""failures.md, 33: one tenant's cache hits can't be seen by another."""

from baton.v1 import inference_pb2, inference_pb2_grpc, sampling_pb2
from services.common import rpc

PROMPT = [11 + (i * 29) % 230 for i in range(200)]


async def ask(stub, tenant):
    """The tokens and the usage of the same prompt, on behalf of a tenant."""
    request = inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIds(ids=PROMPT),
        sampling=sampling_pb2.SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True),
        tenant=tenant,
    )
    tokens, usage = [], None
    async for event in stub.Generate(request, timeout=20.0):
        tokens += [token.token_id for token in event.delta.tokens]
        usage = event.completed.usage if event.HasField("completed") else usage
    assert usage is not None
    return tokens, usage


async def test_a_tenants_prompts_are_cached_for_it_alone(single, reference):
    expected = reference.generate(PROMPT, max_tokens=5, ignore_eos=True)
    async with rpc.channel(single.address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        for tenant in ("one", "two", ""):
            tokens, usage = await ask(stub, tenant)
            assert tokens == expected
            assert usage.cached_tokens == 0, f"{tenant!r} sees what others left"
            again, usage = await ask(stub, tenant)
            assert again == expected
            assert usage.cached_tokens > 100
