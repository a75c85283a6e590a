"""The session store: an index, and files of sessions, over any place. Imported by programs, and by the other doors only for its checks.

``session_store`` says what a store is, ``place_session_store`` is one over any ``SessionPlace``, ``opening`` finds the place that a URL names.
"""

from sessionfs.sessions.store.opening import open_session_store
from sessionfs.sessions.store.place_session_store import PlaceSessionStore
from sessionfs.sessions.store.session_store import SessionStore

__all__ = ["PlaceSessionStore", "SessionStore", "open_session_store"]
