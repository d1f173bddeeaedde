"""Persistent state: incidents, decisions, evictions, the quarantine, targets and notices."""
