"""Which pods carry a group, and nobody else. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from monitor.names import GroupName
from monitor.schedulers.protocol import Place
from monitor.schedulers.sharing import Refusal, in_pod, strangers

DNS: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
"""Names of nodes, pods and namespaces (RFC 1123)."""
UID: Final = re.compile(r"[0-9A-Za-z-]{8,64}")
WORKLOAD_LABEL: Final = "primus-safe.workload.id"
GROUP_LABEL: Final = "primus-safe.workload.group.id"
"""By which Primus-SaFE marks the pods of one replica group of a TorchFT workload
(its well_known_constants.go)."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One pod as its ranks told it."""

    namespace: str
    uid: str
    name: str
    """Empty when they told none (a pod with the node's network): its uid finds it."""
    node: str

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.name or self.uid}"


def wanted_of(
    group: GroupName, places: Sequence[Place], everyone: Iterable[Place]
) -> tuple[Wanted, ...]:
    """The pods of these places, each once.

    Raises:
        Refusal: a rank does not tell its pod, or somebody else's rank is, or may be, in it.
    """
    if not places:
        raise Refusal("no rank of it is known")
    others = strangers(group, everyone)
    found: dict[str, Wanted] = {}
    for place in places:
        one = _wanted(place)
        obstacle = in_pod(others, one.uid, {each.host for each in places if _uid(each) == one.uid})
        if obstacle is not None:
            raise Refusal(obstacle)
        found.setdefault(one.uid, one)
    return tuple(found[uid] for uid in sorted(found))


def _uid(place: Place) -> str:
    return place.labels.get("pod_uid", "")


def _wanted(place: Place) -> Wanted:
    labels = place.labels
    uid, namespace = labels.get("pod_uid", ""), labels.get("namespace", "")
    if not uid or not namespace:
        missing = "the uid" if not uid else "the namespace"
        raise Refusal(f"{place.rank} does not tell {missing} of its pod (POD_UID, POD_NAMESPACE)")
    name, node = labels.get("pod", ""), labels.get("node", "")
    for value in (namespace, *([name] if name else []), *([node] if node else [])):
        if DNS.fullmatch(value) is None:
            raise Refusal(f"{place.rank} tells {value!r:.80} where a name is expected")
    if UID.fullmatch(uid) is None:
        raise Refusal(f"{place.rank} tells {uid!r:.80} where a uid is expected")
    return Wanted(namespace, uid, name, node)


def group_selector(pod: Mapping[str, Any]) -> str | None:
    """The labels that all pods of this pod's group share in Primus-SaFE; None when it has none."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    workload, group = labels.get(WORKLOAD_LABEL), labels.get(GROUP_LABEL)
    if not workload or group in (None, ""):
        return None
    return f"{WORKLOAD_LABEL}={workload},{GROUP_LABEL}={group}"


def uid_of(pod: Mapping[str, Any]) -> str:
    """Of a pod as the API server shows it."""
    return str((pod.get("metadata") or {}).get("uid", ""))


def name_of(pod: Mapping[str, Any]) -> str:
    """Of a pod as the API server shows it."""
    return str((pod.get("metadata") or {}).get("name", ""))


def node_of(pod: Mapping[str, Any]) -> str:
    """Where the API server says that it runs; empty before it is scheduled."""
    return str((pod.get("spec") or {}).get("nodeName") or "")
