"""The archive: incremental checkpoints of files that only grow, each restored byte for byte.

`archive.Archive` is the door, `blocking.BlockingArchive` its blocking form, `objects.Objects` what it asks of the place where checkpoints are kept.
May import what ``sessions`` may; nothing of a mount is needed.
"""
