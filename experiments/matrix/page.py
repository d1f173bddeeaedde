"""evidence/eviction-matrix.md, from the rows. Pure but for `made`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from experiments import harness
from experiments.fleet import JOIN_TIMEOUT_MS
from experiments.matrix.cases import FAULTS
from experiments.pages import codes, named, seconds, table

Line = Mapping[str, Any]

_HEAD: Final = """\
# Evictions on real fleets

Written by `make matrix`; do not edit. Real fleets on gloo (three replica groups of one rank; two of
two for the mismatch), a real Lighthouse, a fault in the middle of training. Seconds after it:

- **told**: the incident fires. **decided**: the eviction is decided and written down. **gone**: the
  launcher saw the group's processes end. **left**: a quorum without it was seen.
- **survivors**: the first of three commits in a row of another group at the pace from before (at
  most twice its step time apart), from the trainers' own status files, with lightkeeper and
  without. **back**: the first commit of the group's new processes.
- Lighthouse *down*: killed {down_after:.0f} s after the fault,
  started again {down_for:.0f} s later.
- Ranks are forked from one process that has imported torch, so **back** has no import in it
  (`experiments/forks.py`). Budgets and cool-down are off: each fault comes as on a calm day.
- **load**: of the 2 cores when the run ended. Runs beside other work take longer; what is compared
  is who is evicted, who ends, who comes back, and where.
- Lighthouse down and no gate: a restarted Lighthouse gives out the quorum ids of before, by which
  TorchFT names its rendezvous; groups meet at stale addresses, time out and end (docs/eviction.md).
  A gate goes on counting.
- A mismatch is the program's: its group may come back on the same host. A `crash` or `cut` group
  leaves by itself: nothing is left to evict, and no host is accused.
- Bold: not as it should be. `-`: did not happen while it was watched.
"""


def made(out: Path) -> str:
    """The page from the results file."""
    return render(harness.read(out))


def render(lines: Sequence[Line]) -> str:
    """The whole page."""
    from experiments.matrix.runner import DOWN_AFTER_S, DOWN_FOR_S

    parts = [_HEAD.format(down_after=DOWN_AFTER_S, down_for=DOWN_FOR_S)]
    for timeouts, join_ms in JOIN_TIMEOUT_MS.items():
        mine = [line for line in lines if line["timeouts"] == timeouts]
        if mine:
            whose = "TorchFT's defaults" if timeouts == "default" else "AMD's deployment"
            parts.append(f"## {whose} (`join_timeout_ms` {join_ms})\n\n{_table(mine)}")
    if lines:
        parts.append(_facts(lines))
    return "\n".join(parts)


_COLUMNS: Final = (
    "to_firing", "to_decided", "to_gone", "to_left_quorum", "to_survivors", "to_back",
)  # fmt: skip


def _table(lines: Sequence[Line]) -> str:
    order = list(FAULTS)
    ordered = sorted(
        lines,
        key=lambda line: (order.index(line["fault"]), line["lighthouse"] == "down",
                         line["keeper"], line["gate"]),
    )  # fmt: skip
    return table(_HEAD_ROW, map(_row, ordered))


_HEAD_ROW: Final = (
    "fault", "Lighthouse", "beside the job", "told", "decided", "gone", "left", "survivors", "back",
    "host before, after", "load", "others that ended",
)  # fmt: skip


def _row(line: Line) -> list[str]:
    beside = "nobody"
    if line["keeper"]:
        beside = "lightkeeper, gate" if line["gate"] else "lightkeeper"
    cells = [seconds(line[name]) for name in _COLUMNS]
    if line["keeper"] and line["to_survivors"] is None:
        cells[4] = "**-**"
    hosts = f"{line['host']}, {line['host_back'] or '-'}"
    crashed = ", ".join(f"{name} {at_s:.0f}" for name, at_s in sorted(line["crashed"].items()))
    ended = crashed or "none"
    if line["problems"]:
        ended += f" **{'; '.join(line['problems'])}**"
    load = f"{line['load']:.0f}"
    fault = f"{line['fault']} ({line['shape']})" if line["shape"] == "2x2" else line["fault"]
    return [fault, line["lighthouse"], beside, *cells, hosts, load, ended]


def _facts(lines: Sequence[Line]) -> str:
    loads = [line["load"] for line in lines]
    return (
        f"{len(lines)} runs, on {named(lines, 'machine')}, load {min(loads):.0f} to "
        f"{max(loads):.0f}, of the code at {codes(lines)}.\n"
    )
