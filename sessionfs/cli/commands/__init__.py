"""One module per command: its options and a short body."""
