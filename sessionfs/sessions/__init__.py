"""The doors for programs that need no mount: session store, workspace, event log, archive, catalogue.

All read and write through ``port`` the bytes that a mount shows. May import ``replication`` and everything below it; imported by ``daemon`` and
``cli``. What a door needs of a mount is passed in.
"""
