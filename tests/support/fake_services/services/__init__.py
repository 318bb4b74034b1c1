"""Stands for the real package when its parent directory is on PYTHONPATH: processes that only
start, say so and stop, as FAKE_SERVICES tells them."""
