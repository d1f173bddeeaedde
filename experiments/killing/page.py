"""evidence/kill-each.md, from the rows. Pure but for `made`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from experiments import harness
from experiments.pages import codes, named, numbers, table

Line = Mapping[str, Any]

PROMISED_S: Final = 60.0
"""The stated time: with a gate the whole fleet is back within it, on a machine like this one."""

_HEAD: Final = """\
# Every process of the fleet, killed in turn

Written by `make kill-each`; do not edit. A real fleet on one machine: a Lighthouse, a monitor and
two replica groups of two ranks, each under a torchrun of its own (`trainer.supervisor` starts it
again), each rank with its WorkerServer; once with a gate in front of the Lighthouse, once without.
TorchFT's and the monitor's defaults, steps of 0.2 s. Who would be a unit of systemd (Lighthouse,
gate, monitor, supervisors) is kept as `examples/systemd` says: Restart=always after 1 s (monitor 2
s, gate 0.1 s), and what a unit left behind is ended first (`experiments/killing/keep.py`). Each
process gets SIGKILL while all ranks commit, and the next one's turn comes when every process is
there again and every rank has committed with both groups for 5 s.

- **whole**: seconds until all four ranks commit in quorums of both groups again, from then on
  without a pause above 2 s; 0: no rank paused for so long. **pause**: the longest time in which
  nobody committed anything. **meanwhile**: steps that the other group (or, where no group is hit,
  each) committed until everything was back. **back**: until the killed process, or the one in its
  place, runs; for a rank: has its model and begins to join.
- **lost**: committed steps that the job had to do again. **wrong**: accusations of a rank, or
  evictions of a group, other than the one that was hit.
- Median, and in brackets the longest where it differs, of all kills of that role. **load**: of the
  2 cores before the kills; other work ran beside this.
"""

_STATED: Final = """\
**Stated time: with a gate every single kill is healed within {promised:.0f} s, nobody has to do
anything, and no committed step is lost.** Longest seen: {longest}.
`tests/experiments/test_killing.py` kills each role once in CI, on forked ranks, and asks for the
same.
"""

_WITHOUT: Final = """\
Without a gate all but the Lighthouse are the same. A Lighthouse that dies takes the job's progress
along: TorchFT's manager asks for a quorum once, so every rank of both groups waits out its quorum
timeout (60 s) and ends, and with no group left there is nobody to heal from: training begins at
step 0 again, or at your last checkpoint on disk. That the restarted Lighthouse counts its quorums
from 1 again did no further harm here, for no group had lived to meet at the old places. Put a gate
in front: [the gate](../docs/eviction.md#the-gate).
"""

_NOTES: Final = """\
What the rows have in common:

- **A group** (rank, torchrun, supervisor) takes its other rank along, as everywhere where ranks
  share a process group. The other group waits until the dead manager's last heartbeat is too old
  (5 s, TorchFT's `--heartbeat_timeout_ms`), then trains on alone.
- **torchrun** restarts nothing inside (docs/deploy.md). Of a torchrun that is killed the ranks
  live on: the supervisor kills what is left of it and starts another.
- **A supervisor** that is killed: its unit ends all that it started, WorkerServers too, so no
  evidence is left of it. Where the monitor sees it before the group is back, it calls the ranks
  dead.
- **Accused** is, of a rank or a torchrun, the rank that died (or both), as *dead*; nobody is
  evicted, for who died has left by itself, and no host is quarantined.
- **A WorkerServer** is started again by its rank after 1 s, which notices nothing (one that is \
stopped, after 5 s,
  and one that does not answer itself, after 30 s, are ended first); one that lives
  for ten minutes has its five tries back.
- **The monitor**: nobody waits for it.
- **The gate** is three processes. Whoever of them dies, no request is lost. In the moment between
  the death of the started one and the next start, the one at work has nobody to go on after it: a
  second kill within it is as if the whole gate died, and then as without one.
"""


def made(out: Path) -> str:
    """The page from the results file."""
    return render(harness.read(out))


def render(lines: Sequence[Line]) -> str:
    """The whole page."""
    parts = [_HEAD, _STATED.format(promised=PROMISED_S, longest=_longest(lines))]
    for gate, title in ((True, "With a gate"), (False, "Without")):
        mine = [line for line in lines if line["gate"] == gate]
        if mine:
            parts.append(f"## {title}\n\n{_table(mine)}{'' if gate else chr(10) + _WITHOUT}")
    parts.append(_NOTES)
    if lines:
        parts.append(_facts(lines))
    return "\n".join(parts)


def _longest(lines: Sequence[Line]) -> str:
    gated = [line for line in lines if line["gate"]]
    if not gated or any(line["whole_s"] is None for line in gated):
        return "**not everything was healed**"
    worst = max(gated, key=lambda line: float(line["whole_s"]))
    return f"{worst['whole_s']:.0f} s, at a load of {worst['load_before']:.0f} on 2 cores"


_ROLES: Final = {
    "lighthouse": "Lighthouse",
    "gate": "gate, the started process",
    "gate worker": "gate, the one at work",
    "gate spare": "gate, the one in reserve",
    "monitor": "monitor",
    "supervisor": "supervisor of a group",
    "torchrun": "torchrun",
    "rank 0": "group rank 0 (hosts TorchFT's manager)",
    "rank 1": "another rank",
    "sidecar 0": "WorkerServer of group rank 0",
    "sidecar 1": "WorkerServer of another rank",
}


def _table(lines: Sequence[Line]) -> str:
    head = ("killed", "kills", "whole", "pause", "meanwhile", "back", "lost", "wrong", "load")
    rows = [[line for line in lines if line["role"] == role] for role in _ROLES]
    return table(head, [_row(mine) for mine in rows if mine])


def _row(mine: Sequence[Line]) -> list[str]:
    wrong = sorted({accusation for line in mine for accusation in line["accused_wrongly"]})
    wrong += [f"{group} evicted" for line in mine for group in line["evicted_wrongly"]]
    problems = sorted({line["problem"] for line in mine if line["problem"]})
    loads = [line["load_before"] for line in mine]
    lost = [line["steps_lost"] for line in mine]
    return [
        _ROLES[mine[0]["role"]],
        str(len(mine)),
        numbers(line["whole_s"] for line in mine) + (f" **{problems[0]}**" if problems else ""),
        numbers(line["pause_s"] for line in mine),
        f"{median(line['others_steps'] for line in mine):.0f}",
        numbers(line["back_s"] for line in mine),
        f"**{max(lost)}**" if any(lost) else "0",
        "; ".join(wrong) or "none",
        f"{min(loads):.0f} to {max(loads):.0f}",
    ]


def _facts(lines: Sequence[Line]) -> str:
    evicted = sum(len(line["evicted"]) for line in lines)
    compared, unequal = (sum(line[key] for line in lines) for key in ("compared", "unequal"))
    return (
        f"{len(lines)} kills, `{named(lines, 'command')}`, on {named(lines, 'machine')}, of the "
        f"code at {codes(lines)}. Evictions: {evicted}. Fingerprints of all weights and moments, "
        f"of one step and group rank, written by both groups: {compared}, unequal: {unequal}. "
        "Up to a9244c6 each rank held all weights; since f19a680 its shard (FSDP2).\n"
    )
