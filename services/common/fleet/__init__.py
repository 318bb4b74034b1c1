"""Who works in the fleet, who waits, and who claims room: kept in Redis.

Knows no prompts, tokens or KV, and no policy: scores and rankings come from `baton.policy`.
"""
