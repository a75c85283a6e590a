"""What ``python -m`` starts in the background: each module here only leaves out what its process never needs.

structlog loads rich for coloured tracebacks when it can; a background process writes none, and is 3 MiB smaller
without it.
"""
