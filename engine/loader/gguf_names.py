"""What a GGUF file calls the tensors that Hugging Face checkpoints call otherwise."""

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_BLOCK_NAMES = {
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
    "block_sparse_moe.gate": "ffn_gate_inp",
}
_SANDWICH_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_PRE_NORMS = {"post_attention_layernorm": "ffn_norm"}
_EXPERT_PARTS = {
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "w1": "ffn_gate",
    "w3": "ffn_up",
    "w2": "ffn_down",
}
SHIFTED_NORMS = ("gemma2", "gemma3")
"""The families whose norms multiply by one plus the weight: files hold the sum."""


def stored_name(architecture: str, name: str) -> tuple[str, int | None]:
    """The file's name for `name`, and for an expert's matrix its place in the stack there."""
    module, _, kind = name.rpartition(".")
    if module in _NAMES:
        return f"{_NAMES[module]}.{kind}", None
    _, _, layer, part = module.split(".", 3)
    if ".experts." in part:
        _, _, number, matrix = part.split(".")
        return f"blk.{layer}.{_EXPERT_PARTS[matrix]}_exps.{kind}", int(number)
    norms = _SANDWICH_NORMS if architecture in SHIFTED_NORMS else _PRE_NORMS
    return f"blk.{layer}.{norms.get(part) or _BLOCK_NAMES[part]}.{kind}", None


def expert_name(stacked: str, number: int) -> str:
    """What older files, which store experts one by one, call an expert of a stack."""
    return stacked.replace("_exps.", f".{number}.")
