"""The parts of hydration: rows for what the bucket has, verified downloads, comparison with another host's changes.

Used by ``replication/hydrator.py``; may import what ``replication`` may.
"""
