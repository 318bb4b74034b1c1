"""Prompts: twenty in natural language, of 10 to 1,500 tokens, and made-up ones of token ids."""

from pathlib import Path

_LICENSE = " ".join((Path(__file__).parents[2] / "LICENSE").read_text().split())
_STORY = (
    "The ferry to the island left twice a day, once before the fish market opened and once "
    "after the school closed, and in winter it often did not leave at all. Marta had run its "
    "kitchen for nineteen years. She knew which passengers took sugar, which ones were sick as "
    "soon as the harbour wall slid past the window, and which ones only came aboard to look at "
    "the water. On the first Monday of November a man whom she had never seen sat down at the "
    "table by the stove, put a wooden box in front of him, and asked for two cups of tea. "
)

PROMPTS = [
    "Once upon a time, in a small village by the sea,",
    "The capital of France is Paris, and the capital of Italy is",
    "Water boils at one hundred degrees Celsius at sea level because",
    "Dear Sir or Madam, I am writing to you about the parcel that",
    "To bake a simple loaf of bread you need flour, water, salt and",
    "In 1969, two astronauts walked on the surface of the Moon while",
    "Question: Why is the sky blue during the day?\nAnswer:",
    "My grandmother always said that the best time to plant a tree is",
    "def fibonacci(n):\n    # Returns the n-th Fibonacci number.\n    if n < 2:\n",
    "Es war einmal ein alter Müller, der hatte drei Söhne, und als er starb,",
    "The three most important things to remember when hiking alone in the mountains are:\n1.",
    "The meeting began at nine o'clock sharp. The chairwoman read the agenda aloud, and then",
    _STORY,
    _STORY + "“Two?” said Marta. “Is somebody else coming?” The man looked at the box, and",
    _LICENSE[:200],
    _LICENSE[900:1_150],
    _LICENSE[1_500:1_800],
    _LICENSE[2_000:2_400],
    _STORY + _LICENSE[4_000:4_600],
    _LICENSE[:4_200],
]


def prompt_of(length: int, salt: int = 0) -> list[int]:
    """Token ids of the tests' tiny models; prompts of different `salt` begin differently."""
    return [3 + (i * 37 + salt * 101 + i * i) % 250 for i in range(length)]
