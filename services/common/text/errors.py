"""What loading a tokenizer can fail with. Faults of a request are `baton.errors`."""


class TextModelError(ValueError):
    """The tokenizer can't be loaded; the message names the file and what is wrong with it."""
