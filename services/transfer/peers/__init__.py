"""Reads blobs from other hosts' transfer services, and lets those read ours."""
