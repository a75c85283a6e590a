"""Which sessions exist, and for whom: the authoritative local catalogue (SQLite) and the shared index (PostgreSQL, extra ``postgres``).

``record`` and ``port`` are all that a caller's types need; ``sqlite_catalogue`` and ``postgres_index`` keep the records, ``blocking`` has the forms
without an event loop. Neither is ever used for locking: who may write a session is ownership's business. May import ``sessions.portal``, ``formats``
and ``model``; only the modules ``postgres_*`` import psycopg.
"""
