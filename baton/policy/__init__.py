"""Scheduling as pure functions: who may have room, who comes first, which worker suits."""
