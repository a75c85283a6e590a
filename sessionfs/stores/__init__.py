"""Object stores: the port, its contract as data, and the backends.

Blocking; one attempt per call; no retries, no threads, no clock but what a store itself reports. May import ``formats`` and ``model``.
"""
