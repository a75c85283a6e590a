"""Object stores: the port, its contract as data, and the backends.

Blocking; one attempt per call; no retries, threads only within a call, no clock but what a store itself reports. May import
``formats`` and ``model``.
"""
