"""One file a failure kind; each a pure function of (history, now, config).

Belongs here: who is the culprit, and why. Does not belong here: how long a verdict must hold
before it counts (incident), and what to do about it (policy).
"""
