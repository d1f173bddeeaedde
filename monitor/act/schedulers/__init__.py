"""Schedulers: their drivers keep quarantined hosts out of use, and end a group on request."""
