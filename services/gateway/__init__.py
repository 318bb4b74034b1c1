"""The OpenAI-compatible HTTP door: a thin translation to InferenceService.

Knows HTTP, OpenAI's shapes and server-sent events; no tokenizer, no Redis, no workers.
"""
