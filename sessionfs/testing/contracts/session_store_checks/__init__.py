"""Checks of the session store's contract, by what they are about; imported by ``session_store``.

Each module's ``PROMISES`` are ids, sentences and checks.
"""
