"""For all tests."""

import signal

import pytest


@pytest.fixture(scope="session", autouse=True)
def _children_hear_of_interrupts() -> None:
    """A shell starts background jobs with SIGINT ignored, which their children would inherit."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
