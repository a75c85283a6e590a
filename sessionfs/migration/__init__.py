"""From one store to another: plan, copy, verify, switch.

May import ``replication`` and everything below it; imported by ``daemon`` and ``cli``.
"""
