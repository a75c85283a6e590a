"""Commits: one exact picture of a session, while programs go on.

Used by ``replication/service.py``; may import what ``replication`` may.
"""
