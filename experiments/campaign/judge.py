"""From what was injected and what the monitor said to one line of the results. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from experiments.campaign.classes import Run
from experiments.watch import Seen

Result = dict[str, Any]
_MILESTONES = {
    "to_firing": "firing_s",
    "to_evict_asked": "evict_asked_s",
    "to_left_quorum": "left_quorum_s",
    "to_survivor_commit": "survivor_commit_s",
    "to_rejoined": "rejoined_s",
}


def main_incident(run: Run, seen: Iterable[Seen]) -> Mapping[str, Any] | None:
    """The one that fired for this fault: of the right kind if possible, naming a guilty rank if
    possible, and of those the first. A death is often seen before its records say why.
    """
    return min(
        (incident.latest for incident in seen if incident.fired),
        key=lambda incident: (
            not set(_named(incident)) & set(run.guilty),
            incident["kind"] not in run.kind.kinds,
            float(incident["milestones"]["firing_s"]),
        ),
        default=None,
    )


def judge(
    run: Run, seen: Iterable[Seen], struck: Mapping[str, Any], meddled_s: float | None = None
) -> Result:
    """One line of the results.

    `struck` says when, where and how the fault happened; `meddled_s` when the campaign lost
    patience and ended the group itself: what the monitor says from then on is not about the fault.
    """
    ours = meddled_s or float("inf")
    everything = [
        sighting for sighting in seen if sighting.latest["milestones"]["first_seen_s"] < ours
    ]
    incident = main_incident(run, everything)
    at_s = float(struck["time"])
    wrong = _wrong(run, everything)
    result: Result = {
        "key": run.key,
        "class": run.name,
        "number": run.number,
        "seed": run.seed,
        "shape": run.shape,
        "hit": list(run.hit),
        **struck,
        "detected": incident is not None,
        "kind": None if incident is None else incident["kind"],
        "culprits": _named(incident),
        "confidence": None if incident is None else incident["confidence"],
        "reason": None if incident is None else incident["reason"],
        "resolution": None if incident is None else incident["resolution"],
        "held": _held(incident),
        "gave_up_after": None if meddled_s is None else round(meddled_s - at_s, 1),
        "wrong": wrong,
        "evicted_wrongly": _evicted_wrongly(run, everything),
    }
    for name, milestone in _MILESTONES.items():
        value = None if incident is None else incident["milestones"].get(milestone)
        result[name] = None if value is None else round(float(value) - at_s, 3)
    accused = any(
        accusation["state"] == "firing" and not accusation["unsure"] for accusation in wrong
    )
    result["kind_right"] = incident is not None and incident["kind"] in run.kind.kinds
    exact = _named(incident) == sorted(run.guilty)
    result["exact"] = exact and result["kind_right"] and not accused
    result["incidents"] = [_short(sighting) for sighting in everything]
    return result


def _named(incident: Mapping[str, Any] | None) -> list[str]:
    """Culprits, or the candidates of an unsure incident, sorted."""
    return [] if incident is None else incident["culprits"] or incident["candidates"]


def _wrong(run: Run, seen: list[Seen]) -> list[dict[str, Any]]:
    """Everybody accused who did nothing, also in incidents that never fired."""
    return [
        {
            "rank": rank,
            "state": state,
            "kind": incident.latest["kind"],
            "unsure": incident.unsure(rank),
            "reason": incident.latest["reason"],
        }
        for incident in seen
        for rank, state in sorted(incident.states.items())
        if rank not in run.guilty
    ]


def _evicted_wrongly(run: Run, seen: list[Seen]) -> list[str]:
    guilty = {rank.rpartition(".")[0] for rank in run.guilty}
    return sorted({group for incident in seen for group in incident.evicted} - guilty)


def _held(incident: Mapping[str, Any] | None) -> str | None:
    decisions = [] if incident is None else incident.get("decisions", [])
    holds = [decision for decision in decisions if decision["action"] == "hold"]
    return f"{holds[-1]['guard']}: {holds[-1]['reason']}" if holds else None


def _short(incident: Seen) -> dict[str, Any]:
    latest = incident.latest
    return {
        "id": latest["id"],
        "kind": latest["kind"],
        "state": latest["state"],
        "culprits": _named(latest),
        "accused": incident.states,
        "confidence": latest["confidence"],
        "reason": latest["reason"],
        "story": [[round(s["at_s"], 2), s["to"], s["reason"]] for s in latest["story"]],
    }


def summary(result: Result) -> str:
    """A result for people."""
    if not result["detected"]:
        head = "nothing fired"
    else:
        head = (
            f"{result['kind']} of {', '.join(result['culprits'])} after {_s(result['to_firing'])}"
        )
    marks = [
        f"{name} {_s(result[key])}"
        for name, key in (
            ("evict", "to_evict_asked"),
            ("survivors", "to_survivor_commit"),
            ("back", "to_rejoined"),
        )
    ]  # fmt: skip
    wrong = [
        f"{accusation['rank']} {accusation['state']} {accusation['kind']}"
        for accusation in result["wrong"]
    ]
    return f"{'exact' if result['exact'] else 'NOT EXACT'}: {head}; {', '.join(marks)}" + (
        f"; WRONG: {'; '.join(wrong)}" if wrong else ""
    )


def _s(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
