"""Weeks of a large fleet in virtual time: what breaks, and what it costs with a keeper."""
