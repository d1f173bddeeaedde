"""Schedulers: who decides what starts where is told of quarantine, and asked to end a group."""
