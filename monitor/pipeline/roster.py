"""Every detector there is, and whose flight records they ask for. Pure; a new one goes in here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from monitor.detectors.all_wait import all_wait
from monitor.detectors.all_wait import wanted as wanted_across
from monitor.detectors.corrupt import corrupt
from monitor.detectors.dead import dead
from monitor.detectors.deadlock import deadlock
from monitor.detectors.differing_across import differing_across
from monitor.detectors.differing_across import wanted as wanted_differing
from monitor.detectors.late_comer import late_comer
from monitor.detectors.late_comer import wanted as wanted_late
from monitor.detectors.left_out import left_out
from monitor.detectors.lighthouse_away import lighthouse_away
from monitor.detectors.mismatch import mismatch
from monitor.detectors.not_entered import not_entered
from monitor.detectors.replica_lag import replica_lag
from monitor.detectors.silent_mismatch import sampled_records, silent_mismatch
from monitor.detectors.slow_pause import slow_pause
from monitor.detectors.slow_transfer import slow_transfer
from monitor.detectors.standstill import standstill
from monitor.detectors.straggler import straggler
from monitor.detectors.suspicion import wanted_records as wanted_mismatch
from monitor.detectors.unphased import unphased
from monitor.detectors.unphased import wanted as wanted_unphased
from monitor.detectors.unseen import unseen
from monitor.detectors.verdict import Kind, Verdict
from monitor.detectors.waits import WaitGraph
from monitor.history import History
from monitor.names import RankName


@dataclass(frozen=True, slots=True)
class Detector:
    """A detector by name, and the kind that is unknown when it crashes."""

    name: str
    kind: Kind
    look: Callable[[History, WaitGraph], tuple[Verdict, ...]]


DETECTORS: Final = (
    Detector("mismatch", Kind.MISMATCH, mismatch),
    Detector("left_out", Kind.MISMATCH, left_out),
    Detector("differing_across", Kind.MISMATCH, lambda history, _: differing_across(history)),
    Detector("dead", Kind.DEAD, dead),
    Detector("not_entered", Kind.NOT_ENTERED, not_entered),
    Detector("unphased", Kind.NOT_ENTERED, unphased),
    Detector("deadlock", Kind.DEADLOCK, deadlock),
    Detector("all_wait", Kind.DEADLOCK, all_wait),
    Detector("silent_mismatch", Kind.MISMATCH, lambda history, _: silent_mismatch(history)),
    Detector("corrupt", Kind.STATE_CORRUPT, lambda history, _: corrupt(history)),
    Detector("straggler", Kind.STRAGGLER, lambda history, _: straggler(history)),
    Detector("slow_pause", Kind.STRAGGLER, lambda history, _: slow_pause(history)),
    Detector("slow_transfer", Kind.STRAGGLER, lambda history, _: slow_transfer(history)),
    Detector("late_comer", Kind.STRAGGLER, lambda history, _: late_comer(history)),
    Detector("replica_lag", Kind.REPLICA_LAG, replica_lag),
    Detector("unseen", Kind.UNSEEN, unseen),
    Detector("standstill", Kind.DEADLOCK, standstill),
    Detector("lighthouse_away", Kind.LIGHTHOUSE_AWAY, lighthouse_away),
)


def wanted_records(history: History, graph: WaitGraph) -> tuple[RankName, ...]:
    """Ranks whose records a detector asks for; sorted, each once."""
    suspected = {*wanted_mismatch(history, graph), *wanted_unphased(history, graph)}
    suspected |= {*wanted_differing(history)}
    suspected |= {*wanted_late(history), *wanted_across(history, graph)}
    return tuple(sorted(suspected)) or sampled_records(history, graph)
