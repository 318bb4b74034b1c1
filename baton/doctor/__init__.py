"""Says in words what makes a running Baton slow, and what to change.

`snapshot` asks a router twice, `picture` turns the answers into values, `first_token`, `stream`,
`fleet` and `rooflines` each look for what they know, `diagnosis` puts it together, `text` prints
it. All but taking the snapshot is pure: the same snapshot gives the same words.
"""
