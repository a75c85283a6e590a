"""Event logs of sessions as bytes: the vocabulary, the header, the log in both encodings, and the older formats. Pure. May import ``model``."""
