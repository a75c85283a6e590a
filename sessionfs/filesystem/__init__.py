"""Inodes, handles, operations and the kernel engine: the only place with FUSE types. May import ``replication`` and below."""
