"""What changed in a session, by whomever: exact events, their history, and whether the place answers. May import what ``workspace`` may."""
