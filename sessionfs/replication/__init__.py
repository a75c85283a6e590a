"""How bytes reach the bucket, and come back: the uploader, hydration, retries, and the link to the daemon. trio starts here.

May import ``working_copy``, ``stores``, ``formats`` and ``model``.
"""
