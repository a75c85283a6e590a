"""The Core without a kernel."""
