"""Every threshold, with its range, its unit, where it comes from and what it trades. Pure.

Not here: the policy file and the command line that set them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Annotated, Any, Final, NamedTuple, get_type_hints

DAY: Final = 86_400.0
"""Seconds."""


class Range(NamedTuple):
    """Least and most, both allowed."""

    low: float
    high: float


class ConfigError(ValueError):
    """An option outside its range; the message is one line and names option and range."""


@dataclass(frozen=True, slots=True)
class KeeperConfig:
    """The keeper's options. All times are seconds.

    Raises:
        ConfigError: an option lies outside its range.
    """

    # Detecting: how often to look, and when something counts as a fault.

    tick_s: Annotated[float, Range(0.05, 60)] = 1.0
    """Time between two sweeps. Smaller finds faults sooner and costs every host more requests."""
    observe: bool = False
    """Report what would be evicted, evict nothing."""

    # -- hang: monitor.detect.hang, waits ---------------------------------------
    stall_floor_s: Annotated[float, Range(0.1, DAY)] = 5.0
    """No rank is called hung earlier. Lower is faster; a page-cache miss or a descheduled process
    of 1 to 3 s is common on a busy host (facts/trainer.md section 4)."""
    undeclared_floor_s: Annotated[float, Range(0, DAY)] = 30.0
    """No rank is called hung earlier where its loop does not say what it does: between steps, or
    without phases. An undeclared checkpoint or evaluation looks like that. Half of TorchFT's 60 s,
    after which the others give up; lower finds hangs there sooner and accuses such a pause the
    first time it comes."""
    witnessed_floor_s: Annotated[float, Range(0, DAY)] = 7.0
    """The same where two stacks from outside, at 3 and 5 s, show the main thread at the same line
    of user code, in nothing known to last: a verdict within 9 s. Lower accuses a file or a lock
    that is slow once; at `undeclared_floor_s` stacks make no difference."""
    data_floor_s: Annotated[float, Range(0, DAY)] = 20.0
    """The same where stacks show it waiting for its data and nothing moves; `undeclared_floor_s`
    while cores or bytes show that a data worker is busy. A slow store answers after 10 to 15 s."""
    lasting_floor_s: Annotated[float, Range(0, DAY)] = 45.0
    """The same where stacks show a compiler, a checkpoint, an evaluation or an import. Below the 60
    s at which TorchFT's first timeout ends the waiting, by the time an eviction takes."""
    standstill_s: Annotated[float, Range(0, DAY)] = 30.0
    """When a rank has waited this long and no culprit is found, that is reported; nobody is
    accused."""
    unseen_s: Annotated[float, Range(0, DAY)] = 10.0
    """A participant that no WorkerServer has reported for this long is itself reported. Lower
    reports Managers that are younger than their rank's first report."""
    ending_s: Annotated[float, Range(0, DAY)] = 60.0
    """A rank that waited for another's fault, and left that wait without a commit, may stand still
    this long before it is called hung: its interpreter is ending, which took 24 s on a host with a
    load of 32 on 2 cores (campaign). Lower accuses victims while they end."""
    stall_factor: Annotated[float, Range(1, 1e6)] = 10.0
    """Hung after this many learned step times (or the floor); where that exceeds
    `undeclared_floor_s`, after that time or 3 of them. Lower accuses slow steps."""
    unwitnessed_factor: Annotated[float, Range(1, 1e6)] = 3.0
    """A stalled rank that nobody is seen waiting for gets this many times as long: a stall that
    stops nobody is often an undeclared pause."""
    warm_up_commits: Annotated[int, Range(0, 1e6)] = 3
    """Commits of an incarnation before it is judged: first steps compile and allocate."""
    warm_up_budget_s: Annotated[float, Range(0, DAY)] = 300.0
    """A rank without its first commits is excused for this long (16 CPU s of imports a rank, 90 to
    150 s on a loaded machine, facts/trainer.md)."""
    long_phase_budget_s: Annotated[float, Range(0, DAY)] = 600.0
    """A declared checkpoint, evaluation, compile or init phase is excused for this long."""
    healing_budget_s: Annotated[float, Range(0, DAY)] = 120.0
    """A healing rank is excused for this long (a checkpoint from a peer over the network)."""
    silent_s: Annotated[float, Range(1, DAY)] = 20.0
    """A rank whose WorkerServer is silent this long, while its own group is stuck in a collective
    and nobody else explains it, is taken for the culprit. Lower confuses a lost sidecar with a lost
    host."""
    habit_factor: Annotated[float, Range(1, 1000)] = 2.0
    """A pause that the job has made before is excused for this many times its length: evaluations
    and checkpoints vary. Lower accuses the next longer one; higher finds a hang in its place
    later."""
    habit_half_life_s: Annotated[float, Range(1, 30 * DAY)] = 3600.0
    """After this long without another, a learned pause counts half (a pause that recurs keeps twice
    its interval). Shorter forgets an hourly evaluation, longer keeps the memory of a hang that
    ended by itself."""
    long_phase_factor: Annotated[float, Range(1, 1e6)] = 10.0
    """A declared long phase is excused for this many times its usual length, once it was seen three
    times, instead of for `long_phase_budget_s`."""
    long_phase_floor_s: Annotated[float, Range(0, DAY)] = 60.0
    """No declared long phase is called hung earlier: storage has bad minutes."""
    running_factor: Annotated[float, Range(1, 1000)] = 3.0
    """A rank whose main thread runs (state R) or waits for the disk (D) while it stands still gets
    this many times as long: an undeclared pause looks like that, and so does a process without CPU;
    hangs mostly sleep. Lower accuses compilations, higher finds endless loops later."""
    hang_sweeps: Annotated[int, Range(1, 100)] = 2
    """Consecutive sweeps with the same verdict before it counts: snapshots are skewed. The second
    comes 0.3 s after the first."""

    # -- dead: monitor.detect.dead ------------------------------------------------------
    dead_observations: Annotated[int, Range(1, 100)] = 2
    """Times that a process is observed gone before it counts."""
    death_slack_s: Annotated[float, Range(0.0, 60.0)] = 0.03
    """Ranks of a group that died within this span died together; later ones were taken along.
    WorkerServers see a death within milliseconds; torchrun ends the rest of a group 43 to 142 ms
    after the first (seen). Higher also names those taken along; lower trusts clocks and the
    scheduler of a busy host more than they deserve."""
    heartbeat_grace_s: Annotated[float, Range(0, 60)] = 1.0
    """A heartbeat this much younger than the death proves that the group lives on."""
    host_lost_s: Annotated[float, Range(1, DAY)] = 15.0
    """All WorkerServers of a group silent and its heartbeat stale for this long: host lost. Three
    times the Lighthouse's own heartbeat timeout."""
    job_end_s: Annotated[float, Range(0, DAY)] = 30.0
    """If all ranks of a job end within this span, they ended together: a finished job."""

    # -- mismatch: monitor.detect.mismatch ----------------------------------------------
    mismatch_suspect_s: Annotated[float, Range(0.1, DAY)] = 3.0
    """All members of a process group inside the same unfinished collective for this long: read
    their flight records. Lower reads records (8 to 18 ms of CPU a rank) of healthy ranks."""
    mismatch_sweeps: Annotated[int, Range(1, 100)] = 2
    """As `hang_sweeps`."""
    stuck_inside_s: Annotated[float, Range(1, DAY)] = 45.0
    """A group whose ranks all stay in the same collective for this long, while all other groups
    wait for it, is accused as a whole. Under TorchFT's 60 s, after which the others give up; lower
    accuses slow transfers, which are reported earlier without accusing anybody."""
    record_fresh_s: Annotated[float, Range(1, DAY)] = 60.0
    """Older flight records are no evidence of what happens now."""
    record_repeat_s: Annotated[float, Range(0, DAY)] = 10.0
    """Records are read again at this interval while a suspicion lasts."""
    sample_s: Annotated[float, Range(0, DAY)] = 30.0
    """How often the flight records of a small healthy group are read and compared, for mismatches
    that hang nothing; 0: never. Where ranks call so much that their ring of 1,024 calls turns over
    sooner (FSDP2 does), every half turn, at most every `record_repeat_s`. At 8 to 18 ms of a rank's
    CPU it costs under 0.1 %, 0.2 % at most."""

    # -- straggler: monitor.detect.straggler --------------------------------------------
    window_s: Annotated[float, Range(0.5, 3600)] = 5.0
    """Shortest window over which busy seconds a step are averaged."""
    window_steps: Annotated[int, Range(1, 1e6)] = 3
    """Fewest steps in a window. More finds a slow rank later where steps are long; with fewer than
    3, one long step looks like a slow rank."""
    window_limit_s: Annotated[float, Range(1, DAY)] = 120.0
    """A window that lasts longer is thrown away (a pause, not a pace)."""
    straggler_ratio: Annotated[float, Range(1.01, 100)] = 1.5
    """Busy seconds against the cohort's median. Lower finds milder stragglers and accuses
    uneven batches; 1.1 is usual with 100 peers (ALGORITHMS.md section 6), 1.5 with few."""
    mild_ratio: Annotated[float, Range(1.01, 100)] = 1.3
    """The same for slowness that lasts: in 10 of 12 windows. Lower accuses a rank that gets less of
    a busy host's CPU."""
    straggler_z: Annotated[float, Range(0, 1000)] = 5.0
    """Robust z-score that a cohort of 4 or more must also show."""
    own_change_ratio: Annotated[float, Range(1, 100)] = 1.3
    """In a cohort under 4: how much slower than its own past a rank has to be."""
    straggler_windows: Annotated[int, Range(1, 100)] = 5
    """n: windows looked at."""
    straggler_slow_windows: Annotated[int, Range(1, 100)] = 4
    """m: how many of them must be slow."""
    persistent_windows: Annotated[int, Range(1, 200)] = 8
    """In a cohort under 4, this many slow windows in a row need no own change."""
    restart_quiet_s: Annotated[float, Range(0, 3600)] = 15.0
    """After a group (re)started or died, its host's CPU is busy: windows do not count."""

    # -- Lighthouse away: monitor.detect.dead ---------------------------------
    lighthouse_away_s: Annotated[float, Range(1, DAY)] = 10.0
    """A Lighthouse that does not answer for this long is away. It restarts within 1 to 2 s, and
    forgets a group after 5 s (facts/torchft.md); lower pages for a restart."""

    # -- replica lag: monitor.detect.lag ------------------------------------------
    lag_window_s: Annotated[float, Range(10, DAY)] = 300.0
    """Heals, failed commits and entries are remembered for this long: a loop of restarts turns once
    in 20 to 60 s (a rejoin takes 17 to 20 s, facts/torchft.md). Longer adds up unrelated events."""
    lag_heals: Annotated[int, Range(2, 1000)] = 4
    """Heals of one group within the window, its joining not counted, that make a loop."""
    lag_heal_commits: Annotated[int, Range(1, 1e6)] = 10
    """At most this many commits of the group per heal: an occasional heal is no loop."""
    lag_certain_heals: Annotated[int, Range(2, 1e6)] = 8
    """Heals from which a loop shown by its own ranks may evict: each has cost every group a new
    process group (0.1 to some s), together more than an eviction does (`eviction_cost_s`)."""
    lag_failures: Annotated[int, Range(2, 1e6)] = 5
    """Failed commits of one group within the window, at least one for every two that succeeded (a
    group that fails and heals by turns has as many). One fault of another group fails 1 to 4
    (timeouts until the quorum has forgotten it)."""
    lag_entries: Annotated[int, Range(2, 1000)] = 4
    """Times that one group enters the quorum again within the window. An eviction, a crash and a
    restart by hand are one each."""
    lag_quorums: Annotated[int, Range(2, 1e6)] = 20
    """Quorums within the window beyond those explained by groups coming or leaving: then the quorum
    flaps, though no group is seen to. A group that fails and heals by turns makes two or three a
    turn, and is named before."""
    lag_absent_s: Annotated[float, Range(1, DAY)] = 120.0
    """A group that beats and works, and is in no quorum for this long while others commit, does not
    take part. Twice TorchFT's `join_timeout_ms` and `quorum_timeout` (60 s each by default): a
    joining group is let in at the others' next step, at the latest after one of these."""

    # -- state corrupt: monitor.detect.corrupt -------------------------------------------
    spoilt_attempts: Annotated[int, Range(1, 1e6)] = 3
    """Attempts in a row with non-finite numbers before a group is evicted. One often comes from the
    data or a loss scaler; a vote against the commit has made it harmless. Lower evicts for those;
    higher lets a broken host cost each step its share."""
    spell_shown_s: Annotated[float, Range(0, 3600)] = 20.0
    """Non-finite numbers stay reported for this long after they are finite again."""
    corrupt_sweeps: Annotated[int, Range(1, 100)] = 2
    """As `hang_sweeps`. A fingerprint has been confirmed by a second one before."""
    spike_z: Annotated[float, Range(1, 1000)] = 8.0
    """Robust z-score at which a loss has jumped. Lower reports uneven batches."""

    # Deciding: how long an incident lasts, and what holds an eviction back.

    # -- incidents -------------------------------------------------------------------------
    clear_s: Annotated[float, Range(0, 3600)] = 3.0
    """A fault not seen for this long, its ranks progressing, has passed by itself."""
    straggler_clear_s: Annotated[float, Range(0, 3600)] = 30.0
    """The same for a straggler, which is seen by windows only."""
    lag_clear_s: Annotated[float, Range(0, DAY)] = 60.0
    """A replica lag has ended when its last turn is this long ago and it has not been seen for half
    as long: a loop has turns of seconds to a minute."""
    keep_resolved_s: Annotated[float, Range(60, 30 * DAY)] = 3600.0
    """Resolved incidents are shown, and their signatures remembered, for this long."""
    follow_s: Annotated[float, Range(0, DAY)] = 600.0
    """Milestones of an evicted group are awaited for this long."""

    # -- policy ----------------------------------------------------------------------------
    min_replicas: Annotated[int, Range(1, 1e6)] = 1
    """Healthy participating groups that must remain after an eviction."""
    budget_per_hour: Annotated[int, Range(0, 1e6)] = 4
    """Evictions in any hour. Higher lets a monitor bug do more harm."""
    budget_per_group: Annotated[int, Range(0, 1e6)] = 0
    """The same for one group; 0: no separate limit. Lower hands a group that keeps failing to a
    person sooner."""
    budget_lost: Annotated[int, Range(0, 1e6)] = 6
    """Groups out of sight, with their host or frozen, that schedulers are asked to end in any hour,
    so that they start elsewhere. Higher brings back more of a failed rack, 0 leaves it to a
    person."""
    cool_down_s: Annotated[float, Range(0, DAY)] = 20.0
    """Between two evictions: a quorum needs the heartbeat timeout (5 s) plus its tick, a
    restarted group 17 to 20 s to contribute (facts/torchft.md)."""
    tie_break_s: Annotated[float, Range(0, DAY)] = 20.0
    """If the link between two groups is broken and the job stands for it this long, one of the two
    is evicted, whichever: the last by name, on no blamed host. 0: a person decides."""
    release_survivors: Annotated[int, Range(0, 1)] = 1
    """Whether ranks that wait for a group that is gone are freed at once (1), or by TorchFT's
    timeout (0)."""
    gentle_end_s: Annotated[float, Range(0, 15)] = 5.0
    """Before SIGTERM, for an evicted rank to come to the end of its step if it trains, and to abort
    its process groups if they are on devices. 0: SIGTERM at once."""
    breaker_share: Annotated[float, Range(0, 1)] = 1 / 3
    """Share of the groups that may be accused at once before nobody is evicted (at least 1)."""
    # The monitor's own health: monitor.detect.self_health.
    lateness_ticks: Annotated[float, Range(0.1, 1000)] = 2.0
    """A tick this many ticks late is the monitor's own sickness."""
    unreachable_share: Annotated[float, Range(0, 1)] = 0.2
    """A larger share of silent targets in a tick, at least 2 on 2 hosts, is the monitor's
    sickness."""
    starved_share: Annotated[float, Range(0, 1)] = 0.5
    """If a monitor thread waits for a core for more than this share of a tick, the monitor doubts
    itself: half a tick is near the deadline of a sweep (0.8 of it). Lower doubts on every busy
    host."""
    eviction_cost_s: Annotated[float, Range(0, DAY)] = 15.0
    """Cost of heal and restart, until an eviction of this job has been measured; a straggler is
    evicted once it has cost more (ski rental)."""
    eviction_ack_s: Annotated[float, Range(1, 3600)] = 10.0
    """An eviction that the evictor does not take up within this long is decided again."""
    eviction_deadline_s: Annotated[float, Range(1, 3600)] = 90.0
    """An eviction without effect for this long has failed. A Lighthouse kill of a stopped group
    takes 30 s to fail by itself."""
    program_bug_after: Annotated[int, Range(1, 1000)] = 1
    """Evictions for one signature that recurred on another host, before the program is blamed."""
    crash_loop_after: Annotated[int, Range(1, 1000)] = 1
    """Evictions for one signature, wherever it recurred, before a person has to look."""
    crash_loop_memory_s: Annotated[float, Range(0, 90 * DAY)] = 3600.0
    """How long after its end an eviction counts for these two. Longer holds a fault that hosts
    caused, shorter forgets a slow program bug."""

    # Keeping: what is kept for how long, and who is notified when.

    # -- quarantine
    quarantine_again_factor: Annotated[float, Range(1, 1000)] = 3.0
    """A host that lightkeeper quarantines again within `lemon_window_days` is out this many times
    as long as the first time (24 h, then 72 h). At 1 the length never changes."""
    lemon_window_days: Annotated[float, Range(0.001, 366)] = 28.0
    """How long a host's history counts: the window over which Meta looks for lemon nodes (HPCA
    2025). Longer blames a repaired host for its past, shorter forgets one that fails each month."""
    lemon_quarantines: Annotated[int, Range(1, 1000)] = 3
    """Quarantines of a host by lightkeeper within the window that make it a lemon, which stays out
    until a person releases it. 24 h and 72 h did not fix it then; lower removes hosts that had two
    unrelated accidents."""
    lemon_readmissions: Annotated[int, Range(1, 1000)] = 2
    """Times that a host fails again soon after readmission that make it a lemon."""
    readmission_hours: Annotated[float, Range(0, 24 * 366)] = 24.0
    """A host that fails again within this long after readmission was let in too early."""
    lemon_faults: Annotated[int, Range(1, 1e6)] = 5
    """Separate faults of a host within the window that make it a lemon, whether anybody was evicted
    for them or not (observe mode, guards that held)."""
    lemon_apart_s: Annotated[float, Range(0, DAY)] = 3600.0
    """Incidents of one host closer together than this are one fault, seen several times."""

    # -- evidence
    evidence_deadline_s: Annotated[float, Range(0.1, 60)] = 3.0
    """For all answers of one capture together; an eviction waits half a second more at most. A rank
    answers in 5 to 45 ms, py-spy takes 20 ms; higher waits for hosts that will not answer."""
    evidence_fresh_s: Annotated[float, Range(0, 3600)] = 5.0
    """Evidence younger than this also serves an eviction; older is taken again right before it."""
    evidence_ranks: Annotated[int, Range(1, 4096)] = 64
    """Ranks asked for one incident: the culprits' groups first, then victims."""
    evidence_mib: Annotated[float, Range(1, 4096)] = 64.0
    """The answers of one capture, held in memory meanwhile; a rank with full records has 1 to 3
    MiB. The zip has about a tenth of it."""
    evidence_count: Annotated[int, Range(0, 1e6)] = 200
    """Bundles kept; 0 takes no evidence at all."""
    evidence_days: Annotated[float, Range(0.01, 36500)] = 30.0
    """How long bundles are kept."""
    evidence_total_mib: Annotated[int, Range(1, 1e7)] = 1024
    """All bundles on disk; the oldest are deleted first, the newest stays."""

    # -- notify
    notify_hold_s: Annotated[float, Range(0, DAY)] = 10.0
    """A guard that holds an eviction back this long needs a person. Lower pages for what passes by
    itself."""
    notify_give_up_s: Annotated[float, Range(1, 30 * DAY)] = 3600.0
    """A message that could not be delivered for this long is dropped as old news."""
    notify_expire_s: Annotated[float, Range(4, DAY)] = 300.0
    """Alertmanager ends an alert that is not sent again within this time; it is sent four times as
    often. Lower ends the alerts of a dead monitor sooner, and those of a slow one wrongly."""

    def __post_init__(self) -> None:
        for name in RANGES:
            if (problem := self.problem_with(name, getattr(self, name))) is not None:
                raise ConfigError(f"{name} {problem}")
        if self.straggler_slow_windows > self.straggler_windows:
            raise ConfigError(
                f"straggler_slow_windows is {self.straggler_slow_windows}, "
                f"expected at most straggler_windows ({self.straggler_windows})"
            )

    @staticmethod
    def problem_with(name: str, value: float) -> str | None:
        """How a value lies outside of the range of this option; None: it does not."""
        low, high = RANGES[name]
        return None if low <= value <= high else f"is {value}, expected {low:g} to {high:g}"

    @staticmethod
    def limited(name: str, value: float) -> float:
        """The value, limited to the range of this option."""
        low, high = RANGES[name]
        return min(max(value, low), high)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> KeeperConfig:
        """Configuration from named options; None means the default.

        Raises:
            ConfigError: an unknown option, or one outside its range.
        """
        names = {field.name for field in fields(cls)}
        for name in options:
            if name not in names:
                near = " or ".join(get_close_matches(name, sorted(names)))
                meant = "expected a name that `lightkeeper policy show` lists"
                raise ConfigError(
                    f"unknown option {name}, {f'did you mean {near}?' if near else meant}"
                )
        return cls(**{name: value for name, value in options.items() if value is not None})


RANGES: Final[Mapping[str, Range]] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(KeeperConfig, include_extras=True).items()
    if hint is not bool
}
