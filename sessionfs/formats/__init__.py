"""Bytes to records and back: manifests, object metadata, intent records, messages. Pure: no I/O, no clock. May import ``model``."""
