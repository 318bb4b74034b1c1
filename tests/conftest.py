"""For all tests."""

import gc
import signal

import pytest


def pytest_collection_finish() -> None:
    """What is there for good (modules, thousands of tests) is not looked through for garbage
    again and again: about a twentieth of the time of all tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _children_hear_of_interrupts() -> None:
    """A shell starts background jobs with SIGINT ignored, which their children would inherit."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
