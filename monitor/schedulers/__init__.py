"""Schedulers: who decides what starts where is told of quarantine, and asked to end a group.

Belongs here: one driver a scheduler (`slurm`, `kube`, `webhook`) behind one protocol, and
`follow`, which makes them agree with the quarantine list. Does not belong here: whether a host is
quarantined or a group evicted (policy), and when a rung is climbed (evictors).
"""

from monitor.schedulers.protocol import Check, Everyone, Outcome, Place, Scheduler

__all__ = ["Check", "Everyone", "Outcome", "Place", "Scheduler"]
