"""What a host settles before it changes a session that others had: what is here, what the owner before left uncommitted, tokens to go on from.

Used by ``replication/hydrator.py``; may import what ``replication`` may.
"""
