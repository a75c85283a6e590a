"""The replication process itself: how it admits a store, and how it is put together. Imports no kernel engine."""
