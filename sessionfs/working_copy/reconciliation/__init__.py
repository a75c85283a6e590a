"""The working copy compared with the journal, when the log cannot tell. May import what ``working_copy`` may."""
