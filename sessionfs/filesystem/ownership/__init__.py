"""Whether this host may change a session, and becoming its owner before the first change."""
