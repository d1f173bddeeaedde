"""What has to change on a node, computed from the node as it was read. Pure.

Theory of operation. One annotation says whose quarantine stands on the node, and whether the cordon
is ours: several monitors (one a job) may hold the same node, and an administrator or NVSentinel may
have cordoned it before. The taint stands as long as one holder is left; the cordon is taken back by
the last of them, only if one of them made it. All of it travels in one merge patch with the
resourceVersion that was read, so that whoever changed the node meanwhile makes it fail, and it is
computed again.

NVSentinel cordons, taints and annotates by its own keys. Taking back a cordon of a node that it
holds would cancel its repair (its docs/cancelling-breakfix.md), so ours waits until it lets go.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from monitor.names import IncidentId
from monitor.schedulers.wording import plain

KEY: Final = "lightkeeper.dev/quarantine"
"""The annotation, the taint and the label, by which `kubectl get nodes -l` finds them."""
TAINT: Final = {"key": KEY, "value": "true", "effect": "NoSchedule"}
REASON_MAX_CHARS: Final = 400
_SENTINEL: Final = "quarantineHealthEvent"
_SENTINEL_LABEL: Final = ("k8saas.nvidia.com/cordon-by", "NVSentinel")
_OWN_CONDITIONS: Final = frozenset(
    {"Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"}
)


@dataclass(frozen=True, slots=True)
class Change:
    """A patch, or none because it is so already; and what there is to say."""

    patch: Mapping[str, Any] | None
    said: str
    ours: bool = True
    wait: bool = False
    """Not now: somebody else has to let go first."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Who holds a node in quarantine, by the annotation."""

    by: Mapping[str, Mapping[str, Any]]
    cordoned: bool
    """Whether one of the holders made the cordon."""


def hold_of(node: Mapping[str, Any]) -> Hold:
    """The annotation; one that cannot be read holds nothing, and its cordon is not ours."""
    try:
        said = json.loads(_meta(node, "annotations").get(KEY, "{}"))
        by = {str(name): dict(entry) for name, entry in said.get("by", {}).items()}
        return Hold(by, said.get("cordoned") is True)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return Hold({}, cordoned=False)


def cordon(
    node: Mapping[str, Any], owner: str, reason: str, incident_id: IncidentId | None, since: str
) -> Change:
    """Cordon, taint, label and annotate."""
    hold, spec = hold_of(node), node.get("spec") or {}
    unschedulable = spec.get("unschedulable") is True
    taints = [one for one in spec.get("taints") or [] if one.get("key") != KEY]
    tainted = len(taints) < len(spec.get("taints") or [])
    if owner in hold.by and tainted:
        return Change(None, "is cordoned already" + _beside(node, hold, owner))
    entry = {"reason": plain(reason, REASON_MAX_CHARS), "incident": incident_id, "since": since}
    cordoned = hold.cordoned or not unschedulable
    said = _annotation({**hold.by, owner: entry}, cordoned)
    patch = {
        "metadata": {
            "resourceVersion": _version(node),
            "annotations": {KEY: said},
            "labels": {KEY: "true"},
        },
        "spec": {"unschedulable": True, "taints": [*taints, TAINT]},
    }
    made = "cordoned and tainted" if not unschedulable else "tainted (it was cordoned before)"
    return Change(patch, made + _beside(node, hold, owner))


def uncordon(node: Mapping[str, Any], owner: str) -> Change:
    """Take back what this owner holds; the last one takes taint and cordon along."""
    hold, spec = hold_of(node), node.get("spec") or {}
    if owner not in hold.by:
        other = _others(node, hold, owner)
        held = other or spec.get("unschedulable") is True
        said = "is not held by us" + (f"; {other or 'somebody cordoned it'}" if held else "")
        return Change(None, said, ours=not held)
    rest = {name: entry for name, entry in hold.by.items() if name != owner}
    if rest:
        meta = {
            "resourceVersion": _version(node),
            "annotations": {KEY: _annotation(rest, hold.cordoned)},
        }
        return Change({"metadata": meta}, f"is held by {', '.join(sorted(rest))} still", ours=False)
    if hold.cordoned and (sentinel := sentinel_of(node)) is not None:
        return Change(None, f"stays cordoned for now: {sentinel}", ours=False, wait=True)
    changed: dict[str, Any] = {
        "taints": [one for one in spec.get("taints") or [] if one.get("key") != KEY]
    }
    if hold.cordoned:
        changed["unschedulable"] = False
    patch = {
        "metadata": {
            "resourceVersion": _version(node),
            "annotations": {KEY: None},
            "labels": {KEY: None},
        },
        "spec": changed,
    }
    if hold.cordoned or spec.get("unschedulable") is not True:
        return Change(patch, "uncordoned and untainted")
    return Change(patch, "untainted; it was cordoned before us and stays so", ours=False)


def sentinel_of(node: Mapping[str, Any]) -> str | None:
    """That NVSentinel holds the node, and what it found; None when it does not."""
    label, value = _SENTINEL_LABEL
    events = _meta(node, "annotations").get(_SENTINEL, "")
    if not events.strip("[] {}") and _meta(node, "labels").get(label) != value:
        return None
    found = [
        str(one.get("type"))
        for one in (node.get("status") or {}).get("conditions") or []
        if one.get("status") == "True" and one.get("type") not in _OWN_CONDITIONS
    ]
    return "NVSentinel holds it" + (f" ({', '.join(sorted(found)[:5])})" if found else "")


def is_ready(node: Mapping[str, Any]) -> bool:
    """Whether its kubelet reports."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def condition(
    node: Mapping[str, Any], kind: str, *, bad: bool, message: str, now: str
) -> Mapping[str, Any] | None:
    """A patch of nodes/status that sets one condition; None when it is so already.

    A strategic merge patch: conditions are merged by type, those of others stay.
    """
    status = "True" if bad else "False"
    conditions: Sequence[Mapping[str, Any]] = (node.get("status") or {}).get("conditions") or []
    known = next((one for one in conditions if one.get("type") == kind), None)
    if (known is None and not bad) or (known is not None and known.get("status") == status):
        return None
    made = {
        "type": kind,
        "status": status,
        "reason": "LightkeeperQuarantine" if bad else "LightkeeperReleased",
        "message": plain(message, REASON_MAX_CHARS),
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    return {"status": {"conditions": [made]}}


def _annotation(by: Mapping[str, Mapping[str, Any]], cordoned: bool) -> str:
    return json.dumps({"cordoned": cordoned, "by": dict(by)}, sort_keys=True)


def _beside(node: Mapping[str, Any], hold: Hold, owner: str) -> str:
    other = _others(node, hold, owner)
    return f"; {other}" if other else ""


def _others(node: Mapping[str, Any], hold: Hold, owner: str) -> str:
    names = sorted(name for name in hold.by if name != owner)
    parts = [f"held by {', '.join(names)}"] if names else []
    sentinel = sentinel_of(node)
    return "; ".join(parts + ([sentinel] if sentinel else []))


def _meta(node: Mapping[str, Any], part: str) -> Mapping[str, str]:
    return (node.get("metadata") or {}).get(part) or {}


def _version(node: Mapping[str, Any]) -> str:
    return str((node.get("metadata") or {}).get("resourceVersion", ""))
