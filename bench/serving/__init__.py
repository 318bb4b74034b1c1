"""What the serving scenarios share: a Baton to load, and a client that measures."""
