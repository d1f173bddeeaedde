"""evidence/campaign.md, from the results of the campaign and of the soak. Pure but for `made`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from experiments import harness
from experiments.campaign.classes import CLASSES
from experiments.campaign.judge import summary
from experiments.pages import codes, named, quantile, share, table

Line = Mapping[str, Any]

_HEAD: Final = """\
# Fault campaign and soak

Written by `make campaign` and `make soak`; do not edit. Real fleets on gloo (3x1: three replica
groups of one rank, 2x2: two of two), a real Lighthouse, the monitor with its default thresholds.
The trainer's injector breaks a rank in the middle of training; ranks, steps and phases are drawn
from the seed. Ranks are forked from one process that has imported torch, so that a restart takes
seconds (`experiments/forks.py`); everything else is as users run it. Times are of a shared machine:
nothing is asserted about them. Classes that were made again, and what they showed before:
[README](README.md#campaign-runs-that-were-made-again).
"""


def beside(out: Path) -> Path:
    """Where the results without phases are."""
    return out.with_name(f"{out.stem}-plain{out.suffix}")


def made(out: Path, soak: Path | None = None) -> str:
    """The page from all results files."""
    soaks = soak or out.with_name("soak.jsonl")
    return render(*map(harness.read, (out, soaks, beside(out))))


def render(lines: Sequence[Line], soaks: Sequence[Line], plain: Sequence[Line] = ()) -> str:
    """The whole page. `plain`: runs in which the trainer reported nothing."""
    parts = [_HEAD]
    if lines:
        parts += [_campaign(lines, "Campaign"), _misses(lines)]
    if plain:
        parts += [_campaign(plain, "Campaign without phases"), _PLAIN, _misses(plain)]
    if soaks:
        parts.append(_soaks(soaks))
    return "\n".join(parts)


# -- campaign ----------------------------------------------------------------------------------


def _campaign(lines: Sequence[Line], title: str) -> str:
    judged = [line for line in lines if _has_target(line)]
    detected = sum(line["detected"] for line in judged)
    exact = sum(line["exact"] for line in judged)
    accused = sum(_fired(line) > 0 for line in lines)
    evicted = sum(bool(line["evicted_wrongly"]) for line in lines)
    rows = [_row(name, lines) for name in CLASSES if _of(name, lines)]
    facts = [
        (
            f"{len(lines)} runs, seed {named(lines, 'seed')}, `{named(lines, 'command')}`, on "
            f"{named(lines, 'machine')}; of the code at {codes(lines)}"
        ),
        "",
        f"- detected: {share(detected, len(judged))} (target 100 %)",
        (
            f"- culprits exact, kind right and nobody else accused: {share(exact, len(judged))} "
            "(target at least 99 %)"
        ),
        (
            f"- runs in which an incident fired that accuses somebody innocent: {accused}; "
            f"an innocent group evicted: {evicted}"
        ),
        (
            "- target for a hang: fires at most 5 s after its threshold (5 s or 10 step times; 15 "
            "s while its main thread runs; 30 s in phase communication; docs/detection.md)"
        ),
    ]
    return "\n".join([f"## {title}", "", *facts, "", table(_HEAD_ROW, rows), _LEGEND, ""])


_PLAIN: Final = """\
The same faults in the same fleets, in a trainer that attaches and says nothing more: no phases, no
steps of its own, no losses, no fingerprints of its weights. What there is to see is TorchFT's own
calls, the heads of the process groups and stacks from outside.
"""
_HEAD_ROW: Final = (
    "class", "what happens", "runs", "detected", "exact", "said", "firing p50 / p95",
    "survivors commit p50 / p95", "group back p50 / p95", "innocent: fired / pending only",
)  # fmt: skip
_LEGEND: Final = """\
Seconds after the fault. *Detected*: an incident fired. *Exact*: it names those whom the fault hit
and nobody else, its kind is right, and no other incident accused anybody else. *Innocent*: runs in
which somebody else was accused by an incident that fired, or by one that was dropped before it did
(or only said that it cannot tell between several).
Classes in italics have no target, see below."""


def _row(name: str, lines: Sequence[Line]) -> list[str]:
    mine, fault_class = _of(name, lines), CLASSES[name]
    kinds = Counter(line["kind"] or "nothing" for line in mine)
    fired = sum(_fired(line) > 0 for line in mine)
    pending = sum(_fired(line) == 0 and bool(line["wrong"]) for line in mine)
    shown = f"*{name}*" if fault_class.open_question else name
    caught = sum(line["detected"] for line in mine)
    detected = "-" if fault_class.open_question else share(caught, len(mine))
    return [
        shown,
        fault_class.what,
        str(len(mine)),
        detected,
        share(sum(line["exact"] for line in mine), len(mine)),
        ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())),
        *(_quantiles(mine, key) for key in ("to_firing", "to_survivor_commit", "to_rejoined")),
        f"{fired} / {pending}",
    ]


def _misses(lines: Sequence[Line]) -> str:
    names = [name for name in CLASSES if CLASSES[name].open_question and _of(name, lines)]
    text = ["### Classes without a target", ""]
    text += [f"- *{name}*: {CLASSES[name].open_question}." for name in names] or ["None."]
    text += ["", "### Every miss", ""]
    missed = [line for line in lines if not line["exact"]]
    for line in sorted(missed, key=lambda line: (list(CLASSES).index(line["class"]), line["key"])):
        text += _story(line)
    only = [line for line in lines if line not in missed and line["wrong"]]
    if not missed:
        text.append("None.")
    if only:
        text += ["", "### Accused for a moment, never fired", ""]
        text += [
            f"- `{line['key']}`: "
            + "; ".join(f"{w['rank']} of {w['kind']} ({w['reason']})" for w in line["wrong"])
            for line in only
        ]
    return "\n".join([*text, ""])


def _story(line: Line) -> list[str]:
    fault = {key: value for key, value in line["fault"].items() if key != "kind"}
    details = ", ".join(f"{key} {value}" for key, value in fault.items())
    text = [
        f"- `{line['key']}` in {line['shape']}, {', '.join(line['hit'])} at step {line['step']}"
        + (f" ({details})" if details else "")
        + f": {summary(line)}."
    ]
    for incident in line["incidents"]:
        story = "; ".join(f"+{at_s - line['time']:.1f} s {to}" for at_s, to, _ in incident["story"])
        text.append(
            f"  - {incident['kind']} of {', '.join(incident['culprits'])} "
            f"({incident['confidence']}): {incident['reason']} [{story}]"
        )
    if line.get("gave_up_after") is not None:
        text.append(f"  - the campaign gave up after {line['gave_up_after']:.0f} s")
    exits = ", ".join(f"{group} {rc} at +{at_s:.1f} s" for group, at_s, rc in line["exits"])
    if exits:
        text.append(f"  - launches that ended: {exits}")
    return text


# -- soak --------------------------------------------------------------------------------------


_SOAK_ROW: Final = (
    "shape", "minutes", "seed", "steps", "what was done", "fired", "pending only", "evictions",
    "machine", "command",
)  # fmt: skip


def _soaks(soaks: Sequence[Line]) -> str:
    text = [
        "## Soak",
        "",
        (
            "Healthy training with what makes monitors cry wolf. Target: no incident fires that "
            "accuses a rank."
        ),
        "",
    ]
    rows = [
        [
            line["shape"], f"{line['minutes']:.1f}", str(line["seed"]), str(line["steps"]),
            ", ".join(f"{count} x {name}" for name, count in sorted(line["done"].items())),
            str(len(line["fired"])), str(len(line["pending"])), str(line["evictions"]),
            line["machine"], f"`{line['command']}`",
        ]
        for line in soaks
    ]  # fmt: skip
    text.append(table(_SOAK_ROW, rows).rstrip())
    text += [
        f"\n- {line['shape']}, seed {line['seed']}, {incident['at_min']:.1f} min: "
        f"{incident['state']} {incident['kind']} of {', '.join(incident['culprits'])}: "
        f"{incident['reason']} (last done: {incident['after']})"
        for line in soaks
        for incident in (*line["fired"], *line["pending"])
    ]
    return "\n".join([*text, ""])


# -- figures -----------------------------------------------------------------------------------


def _of(name: str, lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line["class"] == name]


def _has_target(line: Line) -> bool:
    return not CLASSES[line["class"]].open_question


def _fired(line: Line) -> int:
    return sum(
        accusation["state"] == "firing" and not accusation["unsure"] for accusation in line["wrong"]
    )


def _quantiles(lines: Iterable[Line], key: str) -> str:
    values = sorted(line[key] for line in lines if line[key] is not None)
    if not values:
        return "-"
    return f"{quantile(values, 0.5):.1f} / {quantile(values, 0.95):.1f}"
