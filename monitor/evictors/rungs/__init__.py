"""The rungs of the ladder: one file each, all alike from outside.

Belongs here: how one rung asks, how often, and how it is known to have worked. Does not belong
here: in which order rungs are climbed and when an eviction is over (`evictors.ladder`).
"""

from monitor.evictors.rungs.before import quarantine_hosts, wait_for_evidence
from monitor.evictors.rungs.gate import GateRefuses
from monitor.evictors.rungs.lighthouse import LighthouseKill
from monitor.evictors.rungs.rung import Careful, Climber
from monitor.evictors.rungs.scheduler import SchedulerRemoves
from monitor.evictors.rungs.worker import WorkerEvict

__all__ = [
    "Careful",
    "Climber",
    "GateRefuses",
    "LighthouseKill",
    "SchedulerRemoves",
    "WorkerEvict",
    "quarantine_hosts",
    "wait_for_evidence",
]
