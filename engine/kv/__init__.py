"""The KV cache: names, layout, pools of blocks by group, what is held and what is reused."""
