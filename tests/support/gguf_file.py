"""Writes a Transformers model as a GGUF file, as llama.cpp's converter lays it out."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

_ARCHITECTURES = {
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
}
_GEMMAS = ("gemma2", "gemma3")
_PARTS = {
    "embed_tokens": "token_embd",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "norm": "output_norm",
}
_PRE_NORMS = {"post_attention_layernorm": "ffn_norm"}
_SANDWICH_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def write_gguf(
    model: PreTrainedModel, tokenizer: Tokenizer, chat_template: str, file: Path, kind: str
) -> None:
    """`kind` names the ggml type of the matrices; vectors stay float32."""
    architecture = _ARCHITECTURES[model.config.model_type]
    writer = gguf.GGUFWriter(file, architecture)
    _write_settings(writer, model.config, architecture)
    _write_tokenizer(writer, tokenizer, chat_template)
    quantized = gguf.GGMLQuantizationType[kind]
    for stored_name, weight in _stored_tensors(architecture, model):
        values = weight.contiguous().numpy()
        if values.ndim == 1 or quantized is gguf.GGMLQuantizationType.F32:
            writer.add_tensor(stored_name, values)
        else:
            data = gguf.quants.quantize(np.ascontiguousarray(values), quantized)
            writer.add_tensor(stored_name, data, raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _stored_tensors(
    architecture: str, model: PreTrainedModel
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, weight in model.state_dict().items():
        weight = weight.float()
        at = name.removesuffix(".mlp.experts.gate_up_proj").removesuffix(".mlp.experts.down_proj")
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        if at == name:
            stored = _as_stored(architecture, model.config, name, weight)
            yield _stored_name(architecture, name), stored
            continue
        block = at.replace("model.layers", "blk")
        if name.endswith("down_proj"):
            yield f"{block}.ffn_down_exps.weight", weight
        else:
            gate, up = weight.chunk(2, dim=1)
            yield f"{block}.ffn_gate_exps.weight", gate
            yield f"{block}.ffn_up_exps.weight", up


def _stored_name(architecture: str, name: str) -> str:
    module, kind = name.removeprefix("model.").rsplit(".", 1)
    if module == "lm_head":
        return f"output.{kind}"
    if not module.startswith("layers."):
        return f"{_PARTS[module]}.{kind}"
    _, layer, part = module.split(".", 2)
    norms = _SANDWICH_NORMS if architecture in _GEMMAS else _PRE_NORMS
    return f"blk.{layer}.{norms.get(part) or _PARTS[part]}.{kind}"


def _as_stored(architecture: str, config: Any, name: str, weight: torch.Tensor) -> torch.Tensor:
    if architecture in _GEMMAS and "norm" in name:
        return weight + 1.0
    if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        halves = weight.view(heads, 2, head_dim_of(config) // 2, -1)
        return halves.transpose(1, 2).reshape(weight.shape).contiguous()
    return weight


def _write_settings(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim_of(config))
    writer.add_value_length(head_dim_of(config))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    rope = config.rope_parameters
    if architecture in _GEMMAS or config.model_type == "mistral":
        writer.add_sliding_window(config.sliding_window)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if experts := getattr(config, "num_experts", None):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if architecture == "qwen3moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if architecture == "gemma3":
        rope = rope["full_attention"]
    else:
        writer.add_rope_dimension_count(head_dim_of(config))
    writer.add_rope_freq_base(rope["rope_theta"])


def head_dim_of(config: Any) -> int:
    """Dimensions of a head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _write_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer, chat_template: str) -> None:
    vocab = tokenizer.get_vocab()
    tokens = sorted(vocab, key=lambda token: vocab[token])
    special = set(tokenizer.get_added_tokens_decoder())
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [
            gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL
            for i in range(len(vocab))
        ]
    )
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_pad_token_id(vocab["<pad>"])
    writer.add_eos_token_id(vocab["<eos>"])
    writer.add_bos_token_id(vocab["<bos>"])
    writer.add_unk_token_id(vocab["<unk>"])
    writer.add_add_bos_token(True)
    writer.add_chat_template(chat_template)
