"""What Baton tells of itself, put together for people and tools: `python -m services.catalogue`
writes `docs/metrics.md` and `dashboards/`. No process imports it."""
