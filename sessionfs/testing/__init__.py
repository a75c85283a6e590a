"""The shipped test kit: servers, scripted faults, stores that fail. Imported by tests only, never by the product."""
