"""Limits of sampling parameters, as `sampling.proto` states them.

The router refuses by them, and so does every worker at its own door.
"""

MAX_TEMPERATURE = 100.0
MAX_LOGPROBS = 20
MAX_STOP_TOKEN_IDS = 64
MAX_REPETITION_PENALTY = 10.0
MAX_PENALTY = 2.0
MAX_BIAS = 100.0
MAX_BIASES = 300
MAX_BAD_SEQUENCES = 64
MAX_BAD_SEQUENCE_TOKENS = 64
