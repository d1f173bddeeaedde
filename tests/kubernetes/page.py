"""evidence/kubernetes.md, from the rows. Pure but for `write`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from experiments import harness
from tests.kubernetes import measures
from tests.kubernetes.scenarios import SCENARIOS, VICTIM, judge

Record = Mapping[str, Any]

_HEAD: Final = """\
# On a real Kubernetes

Written by `make kubernetes`; do not edit. Three nodes on one machine of two cores: Kubernetes
1.34 (real API server, scheduler, controllers, kubelets, containerd, kube-proxy, CoreDNS). The
examples as docs/deploy.md says: `new-overlay.sh my-job 2 1` with the gate, two groups of two ranks
on a node each, gloo, steps of 0.1 s where nothing else is said, a checkpoint every 50 steps and
`--resume`, and a monitor that acts. Gate, Lighthouse and monitor are together on the third node.
Each run begins with a job that trains, all healthy. Seconds after the first act.

- **lost**: committed steps that were made again. **gap**: the longest time in which no rank
  committed; **worst**: in which some rank did not. A step's own time is in both.
- **ended**: groups that began anew, in brackets how often. **back**: until the group trains
  together with the other again.
- **first sentence**: what each incident said 2 s after it had fired, with its kind; numbers in it
  are of that moment.

What is not as in a real cluster: the image `train:1` has Python and lightkeeper, and torch
{versions} comes from a read-only volume (one folder of this machine, which all nodes share: pip's
torch is 6 GB, and each node would keep it twice); CPU requests are small; network policies are not
enforced; a pod's network has no way out.
"""
_COLUMNS: Final = (
    "scenario", "code", "lost", "gap", "worst", "ended", "back", "evicted", "cordoned",
    "first sentence", "missed",
)  # fmt: skip


def write(path: Path, results: Path) -> str:
    """The page; its text."""
    text = render([row for row in harness.read(results) if row["scenario"] in SCENARIOS])
    harness.write(path, text)
    return text


def render(records: Sequence[Record]) -> str:
    """The whole page."""
    codes: dict[str, dict[str, None]] = {}
    for record in records:
        codes.setdefault(record["label"], {})[record["code"].removesuffix("-dirty")] = None
    rows = [_row(record) for name in SCENARIOS for record in records if record["scenario"] == name]
    versions = next((record["torch"] for record in records if "torch" in record), "")
    lines = [_HEAD.format(versions=versions)]
    lines.append("; ".join(f"**{label}**: {', '.join(of)}" for label, of in codes.items()) + "\n")
    lines += [f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|", *rows, ""]
    return "\n".join(lines + _notes(records))


def _row(record: Record) -> str:
    scenario = SCENARIOS[record["scenario"]]
    worst = max(gap for name, gap in record["gaps"].items() if name != "job")
    cells = [
        f"`{scenario.name}`: {scenario.what}",
        record["label"],
        str(record["lost"]),
        f"{record['gaps']['job']:.1f}",
        f"{worst:.1f}",
        ", ".join(f"{group} ({len(times)})" for group, times in record["starts"].items()) or "-",
        _back(record),
        ", ".join(sorted({g for row in record["incidents"] for g in row["evicted"]})) or "-",
        "yes" if record["cordoned"] else "-",
        "; ".join(_said(record)) or "-",
        "; ".join(judge(dict(record), scenario)) or "**none**",
    ]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _back(record: Record) -> str:
    if VICTIM not in record["back"] and not record["back"]:
        return "-"
    return ", ".join("never" if at_s is None else f"{at_s:.0f}" for at_s in record["back"].values())


def _said(record: Record) -> list[str]:
    return [f"{row['kind']} after {row['fired']:.0f} s: *{measures.said(row)[1]}*"
            for row in record["incidents"] if measures.said(row)]  # fmt: skip


def _notes(records: Sequence[Record]) -> list[str]:
    lines = [f"- `{record['scenario']}` ({record['label']}): {_note(record['notes'])}."
             for record in records if record["notes"]]  # fmt: skip
    head = ["## Noted", "", "*The end* is that of the fault: thawed, or on the network again.", ""]
    return [*head, *lines, ""] if lines else []


def _note(notes: Mapping[str, Any]) -> str:
    words = {True: "yes", False: "no"}
    return "; ".join(f"{name}: {words.get(value, value) if isinstance(value, bool) else value}"
                     for name, value in notes.items())  # fmt: skip
