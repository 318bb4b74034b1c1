"""The prefill worker: computes prompts, publishes their KV, answers with a handoff."""
