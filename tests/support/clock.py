"""A clock that goes on only when told to."""


class FakeClock:
    """Seconds since its making."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
