"""Continuing sequences: what decode workers are for, and prefill workers do where none lives."""
