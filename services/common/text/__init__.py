"""Text on one side, token ids on the other: all that a router needs of a model's tokenizer.

    TextModel.load(path) -> TextModel            a Hugging Face directory or a GGUF file
    TextModel.encode(text) -> list[int]          special tokens added as the model wants them
    TextModel.encode_chat(conversation) -> list[int]  through the chat template
    TextModel.tool_format -> ToolFormat          how the model calls functions
    TextModel.default_sampling -> SamplingDefaults  what the model recommends
    TextModel.detokenizer(prompt_ids) -> Detokenizer
    Detokenizer.push(token_id) -> str            whole code points only
    Detokenizer.finish() -> str                  what was held back
    StopMatcher(stops).push(text) -> str         what may be shown: no part of a stop string
    StopMatcher.matched / .finish()
    Vocabulary.load(path) -> Vocabulary          bytes of every token, for grammars

Loading takes seconds for a large vocabulary: do it before serving. `encode` and `encode_chat`
take about a millisecond per thousand words and release the interpreter lock while they
tokenize: run them in a thread (`asyncio.to_thread`) for texts of more than a few thousand
characters. A template renders with the lock held, in well under a millisecond for a usual
conversation. Everything else takes microseconds. A TextModel may be used from any number of
threads; a Detokenizer and a StopMatcher belong to one stream.

Names resolve on first use, so that who needs a Vocabulary alone loads no template engine.
Knows no torch, no Redis, no workers and no limits of requests (`services.router.validation`).
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.common.text.conversation import Conversation as Conversation
    from services.common.text.conversation import Message as Message
    from services.common.text.conversation import ToolCall as ToolCall
    from services.common.text.detokenizer import Detokenizer as Detokenizer
    from services.common.text.errors import TextModelError as TextModelError
    from services.common.text.model import TextModel as TextModel
    from services.common.text.sampling_defaults import SamplingDefaults as SamplingDefaults
    from services.common.text.stops import StopMatcher as StopMatcher
    from services.common.text.tool_format import ToolFormat as ToolFormat
    from services.common.text.vocabulary import Vocabulary as Vocabulary

_HOMES = {
    "Conversation": "conversation",
    "Detokenizer": "detokenizer",
    "Message": "conversation",
    "SamplingDefaults": "sampling_defaults",
    "StopMatcher": "stops",
    "TextModel": "model",
    "TextModelError": "errors",
    "ToolCall": "conversation",
    "ToolFormat": "tool_format",
    "Vocabulary": "vocabulary",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
