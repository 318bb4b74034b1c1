"""A worker's side of the transfer service: its segment, its copies, its calls."""
