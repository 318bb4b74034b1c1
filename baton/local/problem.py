"""What stands in the way, in words for the person at the terminal."""


class Problem(Exception):
    """Starting or stopping cannot go on; the message says why and what helps."""
