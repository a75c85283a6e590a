"""Rules about the code itself: sizes, names, imports, the error tables, and what the documents say."""
