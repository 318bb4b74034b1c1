"""The planner: keeps the pools of prefill and decode workers the right size."""
