"""Text on one side, token ids on the other: all that a router needs of a model's tokenizer.

    TextModel.load(path) -> TextModel            a Hugging Face directory or a GGUF file
    TextModel.encode(text) -> list[int]          special tokens added as the model wants them
    TextModel.encode_chat(messages) -> list[int] through the chat template
    TextModel.default_sampling -> SamplingDefaults  what the model recommends
    TextModel.detokenizer(prompt_ids) -> Detokenizer
    Detokenizer.push(token_id) -> str            whole code points only
    Detokenizer.finish() -> str                  what was held back
    StopMatcher(stops).push(text) -> str         what may be shown: no part of a stop string
    StopMatcher.matched / .finish()

Loading takes seconds for a large vocabulary: do it before serving. `encode` and `encode_chat`
take about a millisecond per thousand words and release the interpreter lock while they
tokenize: run them in a thread (`asyncio.to_thread`) for texts of more than a few thousand
characters. A template renders with the lock held, in well under a millisecond for a usual
conversation. Everything else takes microseconds. A TextModel may be used from any number of
threads; a Detokenizer and a StopMatcher belong to one stream.

Knows no torch, no Redis, no workers and no limits of requests (`services.router.validation`).
"""

from services.router.text.detokenizer import Detokenizer
from services.router.text.errors import TextModelError
from services.router.text.model import TextModel
from services.router.text.sampling_defaults import SamplingDefaults
from services.router.text.stops import StopMatcher
from services.router.text.template import Message

__all__ = [
    "Detokenizer",
    "Message",
    "SamplingDefaults",
    "StopMatcher",
    "TextModel",
    "TextModelError",
]
