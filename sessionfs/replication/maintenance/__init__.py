"""What people do with generations: restore, fork, compare, collect garbage, verify. Works on the bucket alone, without a mount or a journal.

May import ``replication/trio_store.py``, ``replication/hydration/`` (where named bytes are) and what ``replication`` may; used by ``cli``.
"""
