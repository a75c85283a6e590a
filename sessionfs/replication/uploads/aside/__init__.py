"""Bytes that must outlive their key are brought to the key of their content. May import what ``replication`` may."""
