"""Schedulers: what decides what starts where hears of quarantine, and is asked to end a group."""
