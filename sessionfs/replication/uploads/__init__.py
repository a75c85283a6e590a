"""One key's way into the bucket: stable images, the cheapest request, lost answers, conflicts, and which key is next.

Driven by ``replication/uploader.py``. May import ``replication/trio_store.py`` and ``replication/retry_policy.py``, and the
layers below.
"""
