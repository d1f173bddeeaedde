"""The two acceptance runs on real fleets: the fault campaign and the soak.

Belongs here: choosing faults from seeds, keeping a fleet alive through hundreds of them, judging
what the monitor said, and the page about it (evidence/campaign.md). The monitor is the real one and
is spoken to over HTTP only; the ranks are the trainer's, on gloo, forked instead of started by
torchrun (`forks`), because a start of torch costs 16 CPU seconds a rank.
"""
