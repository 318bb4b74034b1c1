"""Counter-based noise: a number in [0, 1) as a function of (seed, choice, position, purpose).

It is drawn from nothing else, so a handoff, another batch or a retry draws the same. The hash
is SplitMix64's step, chained over the four values:

    step(x) = finalize(x + 0x9E3779B97F4A7C15), all modulo 2**64
    noise = step(step(step(step(seed) ^ choice) ^ position) ^ purpose)

The uniform number is the upper 53 bits of the noise over 2**53. Standard library only.
"""

from enum import IntEnum

_MASK = (1 << 64) - 1
_INCREMENT = 0x9E3779B97F4A7C15


class Purpose(IntEnum):
    """What a number is drawn for; one position may need several."""

    SAMPLE = 0


def splitmix64(state: int) -> int:
    """The output of a SplitMix64 generator in `state`."""
    mixed = (state + _INCREMENT) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


def uniform(seed: int, choice: int, position: int, purpose: Purpose) -> float:
    """The number in [0, 1) for output token `position` of `choice`."""
    noise = splitmix64(seed & _MASK)
    for value in (choice, position, purpose):
        noise = splitmix64(noise ^ (value & _MASK))
    return (noise >> 11) * 2.0**-53
