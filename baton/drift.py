"""How far apart log probabilities may lie that KV handed over gives, and KV computed again.

Imports only the standard library.
"""

_ALARMING_NATS = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}
"""One rounding moves a logit of ten by 1e-6, 0.005 and 0.04; it happens in each layer, and adds up
slowly, by its square root. KV of other tokens or of broken bytes moves it by whole units."""


def alarming_drift(dtype: str) -> float:
    """The drift in natural logarithms that rounding alone does not bring, by the name of the
    number format; that of the coarsest one where the format is none of those known."""
    return _ALARMING_NATS.get(dtype, max(_ALARMING_NATS.values()))
