"""Logs that programs write into a session: lines of JSON, and their sealed segments. Pure. May import ``model``."""
