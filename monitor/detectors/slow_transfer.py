"""Slow communication across replica groups (class S2): all come in time, and wait longer.

Measured: the waiting of whoever waits least. The last to arrive waits for nobody, so what is left
of its waiting is the transfer itself, with TorchFT's quorum and commit. When that grows in window
after window against what it was, the network between the groups is slow, or somebody's link; which
one, phases cannot tell, so nobody is accused. Long steps now on one rank and now on another make
everybody wait too; they show in the sum of all ranks' work, which must not have grown along.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from monitor.detectors.slow_phase import by_kind
from monitor.detectors.verdict import Confidence, Kind, Verdict
from monitor.detectors.wording import seconds
from monitor.history import History
from monitor.pace import Window
from worker_server.wire import WAITING_PHASE

_BASELINE_WINDOWS = 6
_RATIO = 2.0
"""Against its own past: half of a link's speed is lost. Lower tells of a busy network."""
_SHARE_OF_STEP = 0.2
"""Of a step, what the excess must come to: twice that of a rank, for nobody can be evicted."""


def slow_transfer(history: History) -> tuple[Verdict, ...]:
    """At most one verdict; it accuses nobody."""
    config = history.config
    windows = [window for window in history.pace.windows if len(window.paces) > 1]
    count = config.straggler_windows
    if len(windows) < count + _BASELINE_WINDOWS:
        return ()
    if history.now_s - history.disturbed_s < config.restart_quiet_s:
        return ()
    slow = [_least_s(window) for window in windows]
    past = len(windows) - (2 * count if len(windows) > 2 * count else count)
    usual_s = median(slow[:past])
    late = [_late(window, usual_s) for window in windows[-count:]]
    if not late[-1] or sum(late) < config.straggler_slow_windows:
        return ()
    since = next((n for n in range(len(windows) - 1, -1, -1) if not _late(windows[n], usual_s)), -1)
    if _work_s(windows[-count:]) - _work_s(windows[:past]) > median(slow[-count:]) - usual_s:
        return ()
    first = windows[min(since + 1, len(windows) - 1)]
    now_s = median(slow[-count:])
    steps = sum(max(p.steps for p in w.paces.values()) for w in windows[since + 1 :])
    return (
        Verdict(
            kind=Kind.STRAGGLER,
            culprits=(),
            groups=(),
            reason=f"communication across groups takes {seconds(now_s)} a step even for the last "
            f"to arrive, {seconds(usual_s)} before: the network is slow, or somebody's link; "
            "phases cannot tell whose",
            confidence=Confidence.UNSURE,
            since_s=first.start_s,
            victims=tuple(sorted(windows[-1].paces)),
            evidence={
                "slow at": "communication across groups",
                "late arrival": "no: whoever waits least waits longer too",
                "source": f"phases, means over windows of {seconds(config.window_s)} and more",
            },
            lost_s=max(0.0, (now_s - usual_s) * steps),
            signature="straggler:across",
        ),
    )


def _least_s(window: Window) -> float:
    """Waiting seconds a step of whoever waits least."""
    return min(pace.phases.get(WAITING_PHASE, 0.0) for pace in window.paces.values())


def _work_s(windows: Sequence[Window]) -> float:
    """Seconds a step that all ranks work together, the median over these windows."""
    return median(
        sum(sum(by_kind(pace).values()) for pace in window.paces.values()) for window in windows
    )


def _late(window: Window, usual_s: float) -> bool:
    step_s = max(pace.step_s for pace in window.paces.values())
    least_s = _least_s(window)
    return least_s > _RATIO * usual_s and least_s - usual_s > _SHARE_OF_STEP * step_s
