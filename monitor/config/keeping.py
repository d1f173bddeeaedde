"""Thresholds of what is kept and told: quarantine, evidence, messages, accounts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from monitor.config.range import DAY, Range


@dataclass(frozen=True)
class Keeping:
    """What is kept for how long, and who is told when."""

    __slots__ = ()  # the fields lie in `KeeperConfig`

    # -- quarantine: monitor.quarantine ----------------------------------------------------
    quarantine_again_factor: float = 3.0
    """A host that lightkeeper quarantines again within `lemon_window_days` is out for so many times
    as long as the first time (24 h, then 72 h). 1 always gives it the same."""
    lemon_window_days: float = 28.0
    """For how long a host's history counts: the window over which Meta looks for lemon nodes (HPCA
    2025). Longer blames a repaired host for its past, shorter forgets one that fails each month."""
    lemon_quarantines: int = 3
    """Times that lightkeeper quarantines a host within the window until it is a lemon, which stays
    out until a person releases it. 24 h and 72 h did not mend it then; lower takes hosts away that
    had two unrelated accidents."""
    lemon_readmissions: int = 2
    """Times that a host fails again soon after it was let in until it is a lemon."""
    readmission_hours: float = 24.0
    """A host that fails again within so long after it was let in was let in too early."""
    lemon_faults: int = 5
    """Separate faults of a host within the window until it is a lemon, whether anybody was evicted
    for them or not (observe mode, guards that held)."""
    lemon_apart_s: float = 3600.0
    """Incidents of one host closer together than this are one fault, seen several times."""

    # -- evidence: monitor.evidence --------------------------------------------------------
    evidence_deadline_s: float = 3.0
    """All answers of one capture together; an eviction waits half a second more at most. A rank
    answers in 5 to 45 ms, py-spy takes 20 ms; higher waits for hosts that will not answer."""
    evidence_fresh_s: float = 5.0
    """Evidence younger than this serves an eviction too; older is taken again right before it."""
    evidence_ranks: int = 64
    """Ranks asked for one incident: the culprits' groups first, then victims."""
    evidence_mib: float = 64.0
    """Of the answers of one capture, held in memory meanwhile; a rank with full records has 1 to
    3 MiB. The zip has about a tenth of it."""
    evidence_count: int = 200
    """Bundles kept; 0 takes no evidence at all."""
    evidence_days: float = 30.0
    """For how long bundles are kept."""
    evidence_total_mib: int = 1024
    """Of all bundles on disk; the oldest go first, the newest stays."""

    # -- notify: monitor.notify ------------------------------------------------------------
    notify_hold_s: float = 10.0
    """A guard that holds an eviction back for so long needs a person. Lower pages for what
    passes by itself."""
    notify_give_up_s: float = 3600.0
    """A message that could not be delivered for so long is no news any more: it is dropped."""
    notify_expire_s: float = 300.0
    """Alertmanager ends an alert that was not sent again for so long; it is sent four times as
    often. Lower ends the alerts of a dead monitor sooner, and those of a slow one wrongly."""

    # -- audit: monitor.audit --------------------------------------------------------------
    job_timeout_s: float = 60.0
    """The job's `timeout`, `quorum_timeout` and the Lighthouse's `join_timeout_ms`: TorchFT's own
    defaults. What would have been lost without an eviction is reckoned with it; decides nothing."""
    straggler_horizon_s: float = 3600.0
    """For how long a straggler is taken to go on at most had nobody evicted it. Higher claims more
    saved; decides nothing."""


RANGES: Final[Mapping[str, Range]] = {
    "quarantine_again_factor": (1, 1000),
    "lemon_window_days": (0.001, 366),
    "lemon_quarantines": (1, 1000),
    "lemon_readmissions": (1, 1000),
    "readmission_hours": (0, 24 * 366),
    "lemon_faults": (1, 1e6),
    "lemon_apart_s": (0, DAY),
    "evidence_deadline_s": (0.1, 60),
    "evidence_fresh_s": (0, 3600),
    "evidence_ranks": (1, 4096),
    "evidence_mib": (1, 4096),
    "evidence_count": (0, 1e6),
    "evidence_days": (0.01, 36500),
    "evidence_total_mib": (1, 1e7),
    "notify_hold_s": (0, DAY),
    "notify_give_up_s": (1, 30 * DAY),
    "notify_expire_s": (4, DAY),
    "job_timeout_s": (1, DAY),
    "straggler_horizon_s": (1, 30 * DAY),
}
