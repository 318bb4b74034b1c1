"""The router: clients' streams, text, dispatch and retries; no KV and no torch."""
