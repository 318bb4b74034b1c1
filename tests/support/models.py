"""Tiny random checkpoints, complete with a tokenizer, for tests that need a whole model.

`BUILDERS` has a function for each family that makes a Transformers model. `tiny(family, ...)`
saves one as Transformers does, `tiny_gguf` writes the same weights as one GGUF file;
`tiny_llama`, `tiny_gemma3` and their `_gguf` forms are these for the families used most.
Equal arguments give equal weights. Logits spread over a few units, so that greedy decoding has
no near-ties to speak of.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from tests.support.gguf_file import write_gguf

VOCAB_SIZE = 384
CONTEXT_TOKENS = 512
SLIDING_WINDOW = 24
SPECIAL_TOKENS = ("<pad>", "<eos>", "<bos>", "<unk>")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<{{ message['role'] }}>"
    "{{ message['content'] }}</{{ message['role'] }}>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
_TEXT = (
    "Once upon a time, in a small village by the sea, there lived a fisherman and his wife.",
    "The quick brown fox jumps over the lazy dog while the sun sets behind the hills.",
    "Every morning the people of the town gather at the market to sell bread, fish and cheese.",
    "She said that nothing would ever be the same again, and that there was no way back.",
    "Numbers such as 1, 2, 3 and 2024 are written with digits; words are written with letters.",
)
_SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": CONTEXT_TOKENS,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}


def llama_model(*, tied: bool = False, seed: int = 0, **config: Any) -> LlamaForCausalLM:
    """A random Llama of three layers; `config` goes over the defaults."""
    settings = _SHAPE | {"num_hidden_layers": 3, "tie_word_embeddings": tied} | config
    return _filled(LlamaForCausalLM(LlamaConfig(**settings)), seed)


def gemma3_model(*, tied: bool = True, seed: int = 0, **config: Any) -> Gemma3ForCausalLM:
    """A random Gemma 3 of seven layers, the sixth of which attends to everything."""
    settings = _SHAPE | {
        "num_hidden_layers": 7, "tie_word_embeddings": tied, "sliding_window": SLIDING_WINDOW,
        "query_pre_attn_scalar": 32,
    } | config  # fmt: skip
    return _filled(Gemma3ForCausalLM(Gemma3TextConfig(**settings)), seed)


def mistral_model(*, tied: bool = False, seed: int = 0, **config: Any) -> MistralForCausalLM:
    """A random Mistral of three layers, all sliding."""
    settings = _SHAPE | {
        "num_hidden_layers": 3, "tie_word_embeddings": tied, "sliding_window": SLIDING_WINDOW,
    } | config  # fmt: skip
    return _filled(MistralForCausalLM(MistralConfig(**settings)), seed)


def qwen2_model(*, tied: bool = False, seed: int = 0, **config: Any) -> Qwen2ForCausalLM:
    """A random Qwen2 of four layers, full attention throughout. Heads have 16 dimensions."""
    settings = _SHAPE | {"num_hidden_layers": 4, "tie_word_embeddings": tied} | config
    if "head_dim" not in config:
        settings.pop("head_dim")
    return _filled(Qwen2ForCausalLM(Qwen2Config(**settings)), seed)


def qwen3_model(*, tied: bool = False, seed: int = 0, **config: Any) -> Qwen3ForCausalLM:
    """A random Qwen3 of four layers, full attention throughout."""
    settings = _SHAPE | {"num_hidden_layers": 4, "tie_word_embeddings": tied} | config
    return _filled(Qwen3ForCausalLM(Qwen3Config(**settings)), seed)


def qwen3_moe_model(*, tied: bool = False, seed: int = 0, **config: Any) -> Qwen3MoeForCausalLM:
    """A random Qwen3-MoE of four layers; each token goes to two of six experts."""
    settings = _SHAPE | {
        "num_hidden_layers": 4, "tie_word_embeddings": tied, "num_experts": 6,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True,
    } | config  # fmt: skip
    return _filled(Qwen3MoeForCausalLM(Qwen3MoeConfig(**settings)), seed)


def mixtral_model(*, tied: bool = False, seed: int = 0, **config: Any) -> MixtralForCausalLM:
    """A random Mixtral of three layers; each token goes to two of five experts."""
    settings = _SHAPE | {
        "num_hidden_layers": 3, "tie_word_embeddings": tied, "num_local_experts": 5,
        "num_experts_per_tok": 2,
    } | config  # fmt: skip
    return _filled(MixtralForCausalLM(MixtralConfig(**settings)), seed)


def gemma2_model(*, tied: bool = True, seed: int = 0, **config: Any) -> Gemma2ForCausalLM:
    """A random Gemma 2 of four layers; caps are low enough to bend scores and logits."""
    settings = _SHAPE | {
        "num_hidden_layers": 4, "tie_word_embeddings": tied, "sliding_window": SLIDING_WINDOW,
        "query_pre_attn_scalar": 32, "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 4.0, "attn_implementation": "eager",
    } | config  # fmt: skip
    return _filled(Gemma2ForCausalLM(Gemma2Config(**settings)), seed)


BUILDERS: dict[str, Callable[..., PreTrainedModel]] = {
    "gemma2": gemma2_model,
    "gemma3": gemma3_model,
    "llama": llama_model,
    "mistral": mistral_model,
    "mixtral": mixtral_model,
    "qwen2": qwen2_model,
    "qwen3": qwen3_model,
    "qwen3_moe": qwen3_moe_model,
}


def tiny(family: str, directory: Path, *, shards: bool = False, **settings: Any) -> Path:
    """Saves a family's random model to `directory`; returns it."""
    return save_model(BUILDERS[family](**settings), directory, shards=shards)


def tiny_gguf(family: str, directory: Path, *, kind: str = "F32", **settings: Any) -> Path:
    """Writes a family's random model as `directory`/model.gguf; returns the file.

    `kind` is the ggml type of the matrices.
    """
    return _gguf(BUILDERS[family](**settings), directory, kind)


def tiny_llama(directory: Path, *, shards: bool = False, **settings: Any) -> Path:
    """Saves `llama_model(**settings)` to `directory`; returns it."""
    return save_model(llama_model(**settings), directory, shards=shards)


def tiny_gemma3(directory: Path, *, shards: bool = False, **settings: Any) -> Path:
    """Saves `gemma3_model(**settings)` to `directory`; returns it."""
    return save_model(gemma3_model(**settings), directory, shards=shards)


def served_gemma3(directory: Path) -> Path:
    """Saves a Gemma 3 for tests of services: three layers, the second of which attends to
    everything, so that steps are quick and there are two KV groups; returns its directory."""
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    # Untied: a random tied model repeats its last token, whatever its KV holds.
    return tiny_gemma3(directory, tied=False, num_hidden_layers=3, layer_types=kinds)


def tiny_llama_gguf(directory: Path, *, kind: str = "F32", **settings: Any) -> Path:
    """Writes the weights of `tiny_llama` as `directory`/model.gguf; returns the file.

    `kind` is the ggml type of the matrices.
    """
    return _gguf(llama_model(**settings), directory, kind)


def tiny_gemma3_gguf(directory: Path, *, kind: str = "F32", **settings: Any) -> Path:
    """Writes the weights of `tiny_gemma3` as `directory`/model.gguf; returns the file.

    GGUF's window pattern is every sixth layer, and `query_pre_attn_scalar` is `head_dim`.
    """
    return _gguf(gemma3_model(**settings), directory, kind)


def save_model(model: PreTrainedModel, directory: Path, *, shards: bool = False) -> Path:
    """Saves a model as Transformers does, with a tokenizer; `shards` makes it several files."""
    model.save_pretrained(directory, max_shard_size="100KB" if shards else "50GB")
    tokenizer().save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "eos_token": "<eos>",
        "bos_token": "<bos>",
        "unk_token": "<unk>",
        "add_bos_token": True,
        "model_max_length": CONTEXT_TOKENS,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


@cache
def tokenizer() -> Tokenizer:
    """Byte-level BPE of `VOCAB_SIZE` tokens: any text round-trips."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        min_frequency=1,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(_TEXT, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 2)]
    )
    assert made.get_vocab_size() == VOCAB_SIZE
    return made


def _filled(model: PreTrainedModel, seed: int) -> Any:
    """Weights that keep activations near one and logits a few units wide."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if "norm" in name:
            with torch.no_grad():
                weight.add_(noise * 0.1)
        else:
            scale = 0.3 if "embed" in name else weight.shape[-1] ** -0.5
            weight.data.copy_(noise * scale)
    return model.eval()


def _gguf(model: PreTrainedModel, directory: Path, kind: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "model.gguf"
    write_gguf(model, tokenizer(), CHAT_TEMPLATE, file, kind)
    return file
