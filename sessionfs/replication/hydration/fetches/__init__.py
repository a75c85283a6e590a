"""Bytes coming back: one object, a content wherever it is, one file; and what can be done about bytes that are damaged.

Used by ``replication/hydrator.py`` and its parts; may import what ``replication`` may.
"""
