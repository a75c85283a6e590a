"""Contract suites of the doors, for backends of ours and of anybody: each promise an id, a sentence and a check; no backend can override one.

``python -m sessionfs.testing.contracts DOOR`` runs a door's suite on every backend that is registered as an entry point of the group
``sessionfs.contracts.DOOR``: a factory without arguments that gives an asynchronous context manager of a fresh, empty backend.
"""
