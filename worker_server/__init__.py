"""The WorkerServer: the black box beside every rank.

Belongs here: what runs in the rank (attach, reporter, the shared page) and what runs beside
it (the sidecar). Does not belong here: any judgement about who is healthy; that is the
monitor's. `wire` is the contract with the monitor and the only module it may import.

Nothing in this package raises into training, blocks it, or changes its exit code.
"""
