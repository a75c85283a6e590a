"""A search over random interleavings of whole hosts over one bucket."""
