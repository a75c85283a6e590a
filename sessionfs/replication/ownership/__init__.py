"""Who may write a session: the record, the beat, the lease, the fence, taking over, and what becomes of owed files when it was lost.

May import ``replication/trio_store.py``, ``replication/uploads/`` and what ``replication`` may; used by the service and by maintenance.
"""
