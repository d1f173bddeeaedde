"""Witnesses of a host: what the machine itself says, read in a process of their own."""
