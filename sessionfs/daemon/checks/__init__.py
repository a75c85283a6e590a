"""What must hold before a mount: the machine's FUSE, and the mount point."""
