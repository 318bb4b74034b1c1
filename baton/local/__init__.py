"""A whole Baton on this machine: what to start, in which order, and how to stop it.

Only builds command lines of the services; imports none of them.
"""
