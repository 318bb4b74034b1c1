"""The decode worker: continues sequences from a handoff or a prompt, streams tokens."""
