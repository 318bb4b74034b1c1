"""A decode worker dies while it writes a JSON text: the text is the one that it would have been."""

import asyncio
import json
import signal

from baton.client import AsyncClient
from baton.constraints import JsonSchema
from baton.events import Collector, Completed, Delta
from tests.faults.load import ended, ready, until_decoding
from tests.faults.schedules import DECODE

ITEMS = {"enum": [1, 22, "a", "bcd", None]}
LIST = JsonSchema(json.dumps({
    "type": "array", "minItems": 60, "maxItems": 60, "items": ITEMS,
    "x-guidance": {"whitespace_pattern": " "},  # a random model would write little else
}))  # fmt: skip
OPTIONS = {"temperature": 1.0, "seed": 4, "max_tokens": 350, "constraint": LIST}
PROMPT = [3 + (i * 31 + i * i) % 250 for i in range(90)]
SEEN = 20


async def test_a_text_of_a_language_survives_its_worker(pairs):
    async with AsyncClient(pairs.addresses[0]) as client:
        whole = await client.complete(PROMPT, **OPTIONS)
        expected = json.loads(whole.choices[0].text)
        assert len(expected) == 60
        collector, tokens, killing = Collector(), 0, None
        async with client.generate(PROMPT, **OPTIONS) as stream:
            async for event in stream:
                collector.add(event)
                if isinstance(event, Completed):
                    assert event.timings.decode_attempts == 2
                tokens += len(event.tokens) if isinstance(event, Delta) else 0
                if killing is None and tokens >= SEEN:
                    killing = asyncio.create_task(_kill(pairs))
        busy = await killing
        pairs.start(busy)
        result = collector.result()
        assert json.loads(result.choices[0].text) == expected
        await ready(pairs)


async def _kill(pairs):
    (busy,) = await until_decoding(pairs, DECODE, any_of_them=True)
    await ended(pairs, busy, signal.SIGKILL)
    return busy
