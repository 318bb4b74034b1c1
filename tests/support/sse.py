"""Server-sent events as tests read them."""

import json


def events_of(answer):
    """The JSON of each event of a stream; the end must be marked."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.split("\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    texts = [line.removeprefix("data: ") for line in lines]
    if "error" not in texts[-1]:
        assert texts.pop() == "[DONE]"
    return [json.loads(text) for text in texts]
