"""What prefill and decode workers share: the engine on its thread, KV in and out."""
