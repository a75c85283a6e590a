"""The background processes: composition, life of a mount, control socket, replication process.

May import everything but ``cli`` and ``testing``. The replication process starts here too
(`replication`), and imports neither the kernel engine nor anything of the command line.
"""
