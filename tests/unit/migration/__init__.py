"""Migration from store to store, on stores in memory."""
