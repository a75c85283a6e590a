"""Calls through a real mount, one file per family; `mounting` runs the daemon's part in a process of its own."""
