"""Fleets of thousands of ranks without one: WorkerServers by script, real HTTP, and the truth."""
