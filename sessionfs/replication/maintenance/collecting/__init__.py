"""Garbage collection: what nobody needs any more (pure), and its removal under ownership.

May import what ``replication/maintenance`` may; used by ``cli``.
"""
