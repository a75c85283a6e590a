"""Verification of a bucket: what its objects really hold, against what manifests, metadata and markers say. Changes nothing unless told to repair.

May import what ``replication/maintenance`` may; used by ``cli``.
"""
