"""Kubernetes, by the official client: cordon and taint a node, delete the pods of a group.

Theory of operation. What changes on a node is computed from the node as it was read ("kube node"
below), and sent with its resourceVersion; after a conflict, the node is read again, within the
deadline. A pod is deleted with its uid as precondition, so that a newer one of the same name is
never hit, and the request counts as done when the pod is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from lightkeeper.monitor.act.schedulers.base import (
    Check,
    Deadline,
    Ended,
    Everyone,
    Lost,
    NotDone,
    Outcome,
    Owner,
    Place,
    Scheduler,
    Why,
    marked,
    plain_line,
    refuse_shared_pod,
    retrying,
)
from lightkeeper.monitor.act.testimonies import UNKNOWN_S, Fact, Said, read_fact, seconds_since
from lightkeeper.monitor.background import in_thread
from lightkeeper.monitor.model.names import GroupName, Host, one_line
from lightkeeper.monitor.model.wording import by_force

if TYPE_CHECKING:
    from kubernetes import client

Body = Mapping[str, Any]
"""A node, a pod or a part of one, in JSON."""


# -- kube api ----------------------------------------------------------------------------------

BODY_MAX_BYTES: Final = 64 * 1024 * 1024
_AT_ONCE: Final = 8
"""Requests under way or abandoned: a server that drips must not fill the process with threads."""
_SLACK_S: Final = 0.2
_MERGE: Final = "application/merge-patch+json"
_STRATEGIC: Final = "application/strategic-merge-patch+json"
_NODES: Final = "/api/v1/nodes"
_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_PASSING: Final = frozenset({0, 409, 410, 429, 500, 502, 503, 504})
"""Worth another try: somebody changed it meanwhile, or the server is busy or restarts."""


class KubeUnusableError(Exception):
    """There is no client, or no cluster is configured; the message is one line for a person."""


class KubeError(NotDone):
    """An answer other than 2xx, or none; the message is one line for a person."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said, 0.0 if status in _PASSING else None)
        self.status = status


def configured(context: str | None = None) -> client.Configuration:
    """Use the pod's service account if in a pod without KUBECONFIG, else the kubeconfig.

    Raises:
        KubeUnusableError: there is neither, or no client.
    """
    try:
        from kubernetes import client, config  # noqa: PLC0415 - an extra, 0.5 s to import
    except ImportError as exc:
        hint = "its client is not installed: pip install 'lightkeeper[kubernetes]'"
        raise KubeUnusableError(hint) from exc
    configuration = client.Configuration()
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ and not os.environ.get("KUBECONFIG"):
            config.load_incluster_config(client_configuration=configuration)
        else:
            config.load_kube_config(context=context, client_configuration=configuration)
    except (config.ConfigException, OSError, ValueError) as exc:
        raise KubeUnusableError(f"no cluster is configured: {one_line(exc, 300)}") from exc
    return configuration


class KubeApi:
    """The requests to one cluster, each with what is left of a deadline.

    Of the official client this takes what differs between clusters: kubeconfig, tokens and their
    renewal, exec plugins, proxies and TLS. Its calls differ between its releases, and its models
    cost 3 MB of parsing for five fields and drop what a newer server says.
    """

    def __init__(self, configuration: client.Configuration) -> None:
        from kubernetes import client  # noqa: PLC0415 - installed, as there is a configuration

        self._configuration = configuration
        self._client = client.ApiClient(configuration)
        self._places = threading.BoundedSemaphore(_AT_ONCE)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._client.close()

    def ask(
        self, method: str, path: str, deadline: Deadline, body: Body | None = None,
        kind: str = "application/json", *, query: Mapping[str, str] | None = None,
    ) -> Body:  # fmt: skip
        """The answer's JSON object. `kind`: the content type of `body`.

        It is sent by a thread of its own, which is abandoned at the deadline: the client's own
        timeout starts again with every piece that arrives.

        Raises:
            KubeError: any other answer, or none.
            NotDone: not within the deadline, or too many earlier requests have not ended.
        """
        left_s = deadline.left_s()
        headers = {"Accept": "application/json", "Content-Type": kind}
        if not self._places.acquire(blocking=False):
            raise NotDone(f"{_AT_ONCE} earlier requests have not ended")

        def send() -> tuple[int, bytes]:
            try:
                for setting in self._configuration.auth_settings().values():  # renews the token
                    headers[setting["key"]] = setting["value"]
                said = self._client.rest_client.pool_manager.request(
                    method,
                    f"{self._configuration.host}{path}?{urlencode(query or {})}",
                    body=None if body is None else json.dumps(body),
                    headers=headers,
                    timeout=left_s,
                    retries=False,  # a retry is ours to make, within the deadline
                    preload_content=False,
                )
                return int(said.status), said.read(BODY_MAX_BYTES)
            except Exception as exc:
                raise KubeError(0, _unreached(exc)) from exc
            finally:
                self._places.release()

        try:
            status, raw = in_thread("kubernetes request", send).result(left_s + _SLACK_S)
        except FutureTimeoutError:
            raise NotDone(f"not within {left_s:.1f} s") from None
        if not 200 <= status < 300:
            raise KubeError(status, _answer_line(status, raw))
        try:
            answer = json.loads(raw)
        except (ValueError, RecursionError) as exc:
            raise KubeError(0, "the API server's answer is no JSON") from exc
        return answer if isinstance(answer, dict) else {}

    def items(self, path: str, deadline: Deadline, **query: str) -> Sequence[Body]:
        """The items of a list, asked for as by `ask`."""
        listed = self.ask("GET", path, deadline, query=query).get("items") or []
        return [item for item in listed if isinstance(item, dict)]


_DISTRUSTED: Final = re.compile(r"certificate verify failed: ([^(]+?) \(")


def _unreached(exc: Exception) -> str:
    distrusted = _DISTRUSTED.search(str(exc))
    if distrusted is None:
        return one_line(exc, 300)
    return f"the API server's certificate is not accepted: {distrusted[1]} (docs/deploy.md)"


def _answer_line(status: int, raw: bytes) -> str:
    try:
        said = json.loads(raw)
        words = str(said.get("message") or said.get("reason") or "")
    except (ValueError, AttributeError, RecursionError):
        words = ""
    return f"the API server answers {status}" + (f": {one_line(words, 300)}" if words else "")


def _pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


# -- kube node ---------------------------------------------------------------------------------
# What has to change on a node, computed from the node as it was read.
#
# Theory of operation. One annotation says which quarantine lists hold the node, and whether the
# cordon is ours: several monitors (one a job) may hold the same node, and an administrator or
# NVSentinel may have cordoned it before. The taint stays until the last holder lets go, who also
# removes the cordon, but only if one of the holders made it. Everything goes into one merge patch
# with the resourceVersion that was read. If the node has changed meanwhile, the patch fails and is
# computed again.
#
# NVSentinel cordons, taints and annotates by its own keys. Uncordoning a node that it holds would
# cancel its repair (its docs/cancelling-breakfix.md), so we wait until it lets go.

KEY: Final = "lightkeeper.dev/quarantine"
"""Key of the annotation, the taint and the label; `kubectl get nodes -l` finds nodes by it."""
TAINT: Final = {"key": KEY, "value": "true", "effect": "NoSchedule"}
REASON_MAX_CHARS: Final = 400
_SENTINEL: Final = "quarantineHealthEvent"
_BY_SENTINEL: Final = "NVSentinel holds it"
_SENTINEL_LABEL: Final = ("k8saas.nvidia.com/cordon-by", "NVSentinel")


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A patch (None: nothing to change), and a message for a person."""

    patch: Body | None
    said: str
    ours: bool = True
    wait: bool = False
    """Not now: somebody else has to let go first."""


@dataclass(frozen=True, slots=True)
class NodeHold:
    """Who holds a node in quarantine, according to the annotation."""

    by: Mapping[str, Mapping[str, Any]]
    cordoned: bool
    """True if one of the holders made the cordon."""


def hold_of(node: Body) -> NodeHold:
    """Read the annotation; if it cannot be read, nobody holds the node and no cordon is ours."""
    try:
        said = json.loads(_at(node, "metadata", "annotations", KEY) or "{}")
        by = {str(name): dict(entry) for name, entry in said.get("by", {}).items()}
        return NodeHold(by, said.get("cordoned") is True)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return NodeHold({}, cordoned=False)


def cordon(node: Body, owner: str, why: Why, since: str) -> NodeChange:
    hold, unschedulable = hold_of(node), _is_unschedulable(node)
    if owner in hold.by and any(taint.get("key") == KEY for taint in _taints(node)):
        return NodeChange(None, "is cordoned already" + _beside(node, hold, owner))
    reason = plain_line(why.reason, REASON_MAX_CHARS)
    entry = {"reason": reason, "incident": why.incident_id, "since": since}
    spec = {"unschedulable": True, "taints": [*_others_taints(node), TAINT]}
    patch = _patch(node, {**hold.by, owner: entry}, hold.cordoned or not unschedulable, spec)
    word = "tainted (it was cordoned before)" if unschedulable else "cordoned and tainted"
    return NodeChange(patch, word + _beside(node, hold, owner))


def uncordon(node: Body, owner: str) -> NodeChange:
    """Remove this owner's hold; the last holder removes taint and cordon too."""
    hold, unschedulable = hold_of(node), _is_unschedulable(node)
    if owner not in hold.by:
        beside = _beside(node, hold, owner) or "; somebody cordoned it" * unschedulable
        return NodeChange(None, "is not held by us" + beside, not beside)
    by = {name: entry for name, entry in hold.by.items() if name != owner}
    if by:
        said = f"is held by {', '.join(sorted(by))} still"
        return NodeChange(_patch(node, by, hold.cordoned), said, ours=False)
    if hold.cordoned and _sentinel_holds(node):
        return NodeChange(None, f"stays cordoned for now: {_BY_SENTINEL}", ours=False, wait=True)
    freed = {"unschedulable": False} if hold.cordoned else {}
    patch = _patch(node, {}, hold.cordoned, {"taints": _others_taints(node), **freed})
    if hold.cordoned or not unschedulable:
        return NodeChange(patch, "uncordoned and untainted")
    return NodeChange(patch, "untainted; it was cordoned before us and stays so", ours=False)


def _patch(
    node: Body, by: Mapping[str, Mapping[str, Any]], cordoned: bool, spec: Body | None = None
) -> Body:
    """A patch of the node as read. `by`: its holders; without any, annotation and label go."""
    said = json.dumps({"cordoned": cordoned, "by": dict(by)}, sort_keys=True) if by else None
    meta: dict[str, Any] = {
        "resourceVersion": str(_at(node, "metadata", "resourceVersion") or ""),
        "annotations": {KEY: said},
    }
    if spec is None:
        return {"metadata": meta}
    return {"metadata": {**meta, "labels": {KEY: "true" if by else None}}, "spec": spec}


def _sentinel_holds(node: Body) -> bool:
    """True if NVSentinel holds the node."""
    label, value = _SENTINEL_LABEL
    events = _at(node, "metadata", "annotations", _SENTINEL) or ""
    return bool(events.strip("[] {}")) or _at(node, "metadata", "labels", label) == value


def condition_of(node: Body, kind: str) -> str | None:
    """The status of one condition; None where there is none."""
    conditions = _at(node, "status", "conditions") or []
    return next((each.get("status") for each in conditions if each.get("type") == kind), None)


def node_condition(node: Body, kind: str, *, bad: bool, message: str, now: str) -> Body | None:
    """A patch of nodes/status that sets one condition; None if it is set already.

    It is a strategic merge patch: conditions are merged by type, so the others stay.
    """
    status = "True" if bad else "False"
    if condition_of(node, kind) in ((status,) if bad else (status, None)):
        return None
    condition = {
        "type": kind,
        "status": status,
        "reason": "LightkeeperQuarantine" if bad else "LightkeeperReleased",
        "message": plain_line(message, REASON_MAX_CHARS),
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    return {"status": {"conditions": [condition]}}


def _beside(node: Body, hold: NodeHold, owner: str) -> str:
    """Who else holds the node, to complete a sentence."""
    names = sorted(name for name in hold.by if name != owner)
    held = f"; held by {', '.join(names)}" if names else ""
    return held + (f"; {_BY_SENTINEL}" if _sentinel_holds(node) else "")


def _is_unschedulable(node: Body) -> bool:
    return _at(node, "spec", "unschedulable") is True


def _taints(node: Body) -> Sequence[Body]:
    return _at(node, "spec", "taints") or []


def _others_taints(node: Body) -> Sequence[Body]:
    return [taint for taint in _taints(node) if taint.get("key") != KEY]


def _at(body: Body, *path: str) -> Any:
    """The value at a path; None if there is none."""
    value: Any = body
    for name in path:
        value = (value or {}).get(name)
    return value


# What a node or a pod says, as facts that the table `cluster.toml` reads.

_MAINTENANCE: Final = "cloud.google.com/scheduled-maintenance-time"
_SOON_S: Final = 3600.0
_SICHEK: Final = "scitix.ai/sichek"
_OF_THE_JOB: Final = ("nccl", "hang")
"""What sichek says of the job, not of its host."""


def kube_facts(kind: str, body: Body, now_s: float) -> Iterator[Fact]:
    """Everything about a node (`kind`: node) or a pod; our own cordon is left out."""
    for each in _at(body, "status", "conditions") or []:
        said, reason = str(each.get("message") or ""), each.get("reason")
        words = f"{kind} condition {each.get('type')}={each.get('status')} {reason}"
        yield words, said or str(reason), seconds_since(each.get("lastTransitionTime"), now_s)
    for taint in _taints(body):
        yield f"taint {taint.get('key')}", "", UNKNOWN_S
    if _is_unschedulable(body) and not hold_of(body).cordoned:
        yield "cordoned", "", UNKNOWN_S
    labels = _at(body, "metadata", "labels") or {}
    for key, value in labels.items():
        yield f"label {key}={value}", "", UNKNOWN_S
    with contextlib.suppress(ValueError, OverflowError):
        at_s = int(labels.get(_MAINTENANCE, ""))
        soon = "soon" if at_s - now_s < _SOON_S else "later"
        yield f"maintenance {soon}", f"{datetime.fromtimestamp(at_s, UTC):%F %T} UTC", UNKNOWN_S
    yield from _sichek_facts(_at(body, "metadata", "annotations", _SICHEK) or "{}")


def _sichek_facts(text: str) -> Iterator[Fact]:
    """Read an annotation `{part: {level: [{error_name, device}]}}`."""
    with contextlib.suppress(ValueError, TypeError, AttributeError, LookupError, RecursionError):
        parts = json.loads(text)
        for part in sorted(parts.keys() - _OF_THE_JOB):
            for level, error in ((n, e) for n, errors in parts[part].items() for e in errors):
                detail = f"{part}, {error['error_name']} {error.get('device', '')}"
                yield f"sichek {level}", detail, UNKNOWN_S


# How a pod ended: what came first is the cause.

_NOT_KNOWN: Final = "ContainerStatusUnknown"  # of a container that the kubelet did not find
_RECENT_S: Final = 120.0
"""An earlier container of a pod that ended longer ago is not what ended now."""
_UNNOTICED_S: Final = 40.0
"""`node-monitor-grace-period`; 50 s since Kubernetes 1.32."""


def end_facts(pod: Body | None, node: Body | None, now_s: float) -> Iterator[Fact]:
    """How the pod of a group that left or fell silent ended. None: there is none; an empty node:
    its name is not known.
    """
    said = (*kube_facts("node", node or {}, now_s), *kube_facts("pod", pod or {}, now_s))
    cordon = " cordoned" if "cordoned" in (words for words, *_ in said) else ""
    dated = [(f"end {words}", detail, for_s) for words, detail, for_s in said]
    dated += _pod_ends(pod or {}, cordon, now_s)
    yield from sorted(dated, key=_began_s_ago, reverse=True)
    if node is None or pod is None:
        yield "end gone" + (" node" if node is None else cordon), "", 0.0
    elif (phase := _at(pod, "status", "phase")) != "Running":
        yield f"end phase {phase}", "", 0.0
    else:
        yield "end runs", "its pod runs" + " and its node is ready" * bool(node), 0.0


def _began_s_ago(fact: Fact) -> float:
    """A lost node is noticed late: what was done to its pod meanwhile is not the cause."""
    words, _, for_s = fact
    return for_s + _UNNOTICED_S * words.startswith("end node condition Ready=Unknown")


def _pod_ends(pod: Body, cordon: str, now_s: float) -> Iterator[Fact]:
    if (asked := _at(pod, "metadata", "deletionTimestamp")) is not None:  # when it is to be gone
        grace_s = float(_at(pod, "metadata", "deletionGracePeriodSeconds") or 0)
        yield f"end deleted{cordon}", "", seconds_since(asked, now_s + grace_s)
    ends = [*_container_ends(pod, now_s)]
    if reason := _at(pod, "status", "reason"):  # why its containers ended
        first_s = max((ago_s for *_, ago_s in ends), default=0.0)
        yield f"end status {reason}", str(_at(pod, "status", "message") or ""), first_s
    yield from ends


def _container_ends(pod: Body, now_s: float) -> Iterator[Fact]:
    for each in _at(pod, "status", "containerStatuses") or []:
        for when in ("state", "lastState"):
            end = _at(each, when, "terminated") or {}
            ago_s = seconds_since(end.get("finishedAt"), now_s)
            reason, code = end.get("reason"), end.get("exitCode")
            if reason not in (None, _NOT_KNOWN) and (when == "state" or ago_s <= _RECENT_S):
                said = f"container {each.get('name')}, {reason}, exit code {code}"
                yield f"end exit {reason}", said, ago_s


# -- kube pods ---------------------------------------------------------------------------------

DNS: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
"""Names of nodes, pods and namespaces (RFC 1123)."""
UID: Final = re.compile(r"[0-9A-Za-z-]{8,64}")
WORKLOAD_LABEL: Final = "primus-safe.workload.id"
GROUP_LABEL: Final = "primus-safe.workload.group.id"
"""These two labels are on all pods of one replica group of a TorchFT workload in Primus-SaFE (its
well_known_constants.go)."""


@dataclass(frozen=True, slots=True)
class WantedPod:
    """One pod as its ranks named it."""

    namespace: str
    uid: str
    name: str
    """Empty if they named none (a pod with the node's network): then the uid finds it."""
    node: str

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.name or self.uid}"


def wanted_of(places: Sequence[Place], others: Sequence[Place]) -> tuple[WantedPod, ...]:
    """The pods at these places, each once.

    Raises:
        NotDone: a rank does not name its pod, or one of the others is, or may be, in it.
    """
    pods: dict[str, WantedPod] = {}
    for place in places:
        pod = _wanted(place)
        hosts = {each.host for each in places if each.labels.get("pod_uid") == pod.uid}
        refuse_shared_pod(others, pod.uid, hosts)
        pods.setdefault(pod.uid, pod)
    return tuple(pods[uid] for uid in sorted(pods))


def _wanted(place: Place) -> WantedPod:
    labels = place.labels
    uid, namespace = labels.get("pod_uid", ""), labels.get("namespace", "")
    if not uid or not namespace:
        missing = "the uid" if not uid else "the namespace"
        raise NotDone(f"{place.rank} does not tell {missing} of its pod (POD_UID, POD_NAMESPACE)")
    name, node = labels.get("pod", ""), labels.get("node", "")
    for value in (namespace, *([name] if name else []), *([node] if node else [])):
        if DNS.fullmatch(value) is None:
            raise NotDone(f"{place.rank} tells {value!r:.80} where a name is expected")
    if UID.fullmatch(uid) is None:
        raise NotDone(f"{place.rank} tells {uid!r:.80} where a uid is expected")
    return WantedPod(namespace, uid, name, node)


def pod_of(namespace: str, pod: Body) -> WantedPod:
    """A pod as the API server shows it; the node is empty until the pod is scheduled."""
    uid, name = (str(_at(pod, "metadata", part) or "") for part in ("uid", "name"))
    return WantedPod(namespace, uid, name, str(_at(pod, "spec", "nodeName") or ""))


# -- kube --------------------------------------------------------------------------------------

POD_HOST: Final = "pod:"
"""Prefix of a rank's host if its pod does not know its node: see `worker_server.rank.identity`."""
_LOOK_AGAIN_S: Final = 0.25
_UNRENEWED_S: Final = 25.0
"""A kubelet renews its node's lease every 10 s (a quarter of `nodeLeaseDurationSeconds`); one that
has not renewed it twice does not answer. Kubernetes says so after 40 s, or 50 s since 1.32."""
_LOOKS_APART_S: Final = 10.0
"""`Ends` looks every 3 s. What lies between looks further apart was not seen."""
_NODES_MOST: Final = 10_000
_GRACE_S: Final = 5
"""Between SIGTERM and SIGKILL of a pod. An evicted group hangs or is faulty and leaves no
checkpoint, so a longer grace only occupies its host for longer."""


# What `lightkeeper check scheduler` asks Kubernetes; nothing is changed by it.


def rules(namespaces: Collection[str], *, primus: bool) -> Sequence[Mapping[str, str]]:
    """Everything that the driver asks for; examples/kubernetes grants exactly this."""
    nodes = [{"resource": "nodes", "verb": verb} for verb in ("get", "list", "patch")]
    group, namespace = "coordination.k8s.io", "kube-node-lease"
    lease = {"group": group, "resource": "leases", "namespace": namespace, "verb": "get"}
    status = [{"resource": "nodes", "subresource": "status", "verb": "patch"}] if primus else []
    of_pods = ({"verb": "list"}, {"verb": "delete"}, {"verb": "patch", "subresource": "status"})
    pods = [
        {"resource": "pods", "namespace": namespace, **rule}
        for namespace in sorted(namespaces)
        for rule in of_pods
    ]
    return [*nodes, lease, *status, *pods]


def kube_checks(
    api: KubeApi, asked: Sequence[Mapping[str, str]], deadline: Deadline
) -> Iterator[Check]:
    """Ask for each rule whether it is allowed, by a SelfSubjectAccessReview."""
    for rule in asked:
        what = _words(rule)
        try:
            review = {"spec": {"resourceAttributes": rule}}
            status = api.ask("POST", _REVIEWS, deadline, review).get("status") or {}
        except NotDone as exc:
            yield Check(what, False, str(exc))
            if not isinstance(exc, KubeError) or exc.status == 0:
                return  # no answer: the others would fail too
        else:
            allowed, why = status.get("allowed") is True, one_line(status.get("reason") or "", 300)
            yield Check(what, allowed, why or ("allowed" if allowed else "not allowed (see RBAC)"))


def _words(rule: Mapping[str, str]) -> str:
    resource = rule["resource"] + (f"/{rule['subresource']}" if "subresource" in rule else "")
    where = f" in {rule['namespace']}" if rule.get("namespace") else ""
    return f"may {rule['verb']} {resource}{where}"


PRIMUS_PREFIX: Final = "primus-safe."


@dataclass(frozen=True, slots=True)
class KubeOptions:
    force: bool = False
    """True if a pod on a node whose kubelet does not answer is deleted by force although nothing
    fences its processes, which may live on there until the node is back."""
    primus_safe: str | None = None
    """Id of the Primus-SaFE monitor that is to report it, as NodeCondition `primus-safe.ID`."""


class Kubernetes(Scheduler):
    name = "kubernetes"

    def __init__(
        self, api: KubeApi, everyone: Everyone, owner: Owner, options: KubeOptions | None = None
    ) -> None:
        super().__init__(everyone, owner)
        self._api = api
        self._options = options or KubeOptions()
        self._ended: set[object] = set()  # uids of pods that we had deleted
        self._leases: dict[str, tuple[object, float, float]] = {}
        """Node -> when its lease was renewed, since when we see that, and our last look."""

    def checks(self, timeout_s: float) -> Sequence[Check]:
        namespaces = {place.labels.get("namespace", "") for place in self._everyone()} - {""}
        asked = rules(namespaces or {""}, primus=self._options.primus_safe is not None)
        return tuple(kube_checks(self._api, asked, self._deadline(timeout_s)))

    def close(self) -> None:
        self._api.close()

    def testimonies(self, hosts: Collection[Host], timeout_s: float) -> Iterator[Said]:
        deadline, now_s = self._deadline(timeout_s), datetime.now(UTC).timestamp()
        asked = dict.fromkeys((_NODES, str(host)) for host in sorted(hosts))
        for labels in (place.labels for place in self._everyone()):
            if DNS.fullmatch(namespace := labels.get("namespace", "")):
                asked[_pods(namespace), labels.get("pod", "")] = None
        for path, name in asked:
            if not DNS.fullmatch(name):
                continue
            for body in self._named(path, name, deadline):
                kind, node = ("node", name) if path == _NODES else ("pod", pod_of("", body).node)
                said = (read_fact("Kubernetes", *fact) for fact in kube_facts(kind, body, now_s))
                yield from (((node,), each) for each in said if each is not None)

    def _reach(self, deadline: Deadline) -> Outcome:
        self._api.ask("GET", _NODES, deadline, query={"limit": "1"})
        return Outcome(True, "")

    def _named(self, path: str, name: str, deadline: Deadline) -> Sequence[Body]:
        """By a list: our role may ask for one, and it is empty if nothing has this name."""
        return self._api.items(path, deadline, fieldSelector=f"metadata.name={name}")

    def ends(self, places: Sequence[Place], timeout_s: float) -> Iterator[Ended]:
        deadline, now_s = self._deadline(timeout_s), datetime.now(UTC).timestamp()
        ask = cache(partial(self._named, deadline=deadline))  # ranks share pods and nodes
        unrenewed_s = cache(partial(self._unrenewed_s, deadline=deadline))
        for place in places:
            name, namespace = (place.labels.get(key, "") for key in ("pod", "namespace"))
            host = place.labels.get("node") or str(place.host)
            if not (DNS.fullmatch(name) and DNS.fullmatch(namespace)):
                continue
            pods = {_at(pod, "metadata", "uid"): pod for pod in ask(_pods(namespace), name)}
            nodes = [*ask(_NODES, host), None] if DNS.fullmatch(host) else [{}]
            uid = place.labels.get("pod_uid")
            for words, detail, for_s in end_facts(pods.get(uid), nodes[0], now_s):
                ours = uid in self._ended and words.startswith(("end deleted", "end gone"))
                fact = "end ours" if ours else words
                if fact == "end runs" and (still_s := unrenewed_s(host)) >= _UNRENEWED_S:
                    fact, for_s = "end unrenewed", still_s  # noqa: PLW2901
                if (said := read_fact("Kubernetes", fact, detail, for_s)) is not None:
                    yield place, said
                    break

    # -- nodes ---------------------------------------------------------------------------------

    def _cordon(self, host: Host, why: Why, deadline: Deadline) -> Outcome:
        owner = self._owner()
        compute = partial(cordon, owner=owner, why=why, since=_now())
        said = marked(owner, why, REASON_MAX_CHARS)
        return self._change(host, compute, deadline, bad=True, message=said)

    def _uncordon(self, host: Host, reason: str, deadline: Deadline) -> Outcome:
        """Remove our hold, and with the last hold also taint and cordon."""
        compute = partial(uncordon, owner=self._owner())
        return self._change(host, compute, deadline, bad=False, message=reason)

    def _cordoned(self, deadline: Deadline) -> Iterable[Host]:
        owner = self._owner()
        nodes = self._api.items(_NODES, deadline, labelSelector=KEY)
        return [Host(str(node["metadata"]["name"])) for node in nodes if owner in hold_of(node).by]

    def _change(
        self, host: Host, compute: Callable[[Body], NodeChange], deadline: Deadline, *, bad: bool,
        message: str,
    ) -> Outcome:  # fmt: skip
        """Read, compute, write; repeated if somebody else wrote meanwhile or the error may pass.

        `bad`, `message`: what is reported of the node to Primus-SaFE.
        """
        if host.startswith(POD_HOST):
            raise NotDone("its pod was not told its node (set K8S_NODE_NAME by the downward API)")
        if DNS.fullmatch(host) is None:
            raise NotDone(f"{host!r:.80} is no name of a node")

        def change() -> NodeChange:
            path = f"{_NODES}/{host}"
            node = self._api.ask("GET", path, deadline)
            change = compute(node)
            if change.patch is not None:
                self._api.ask("PATCH", path, deadline, change.patch, _MERGE)
            if self._options.primus_safe is not None and not change.wait:
                kind = PRIMUS_PREFIX + self._options.primus_safe
                held = bad or bool(set(hold_of(node).by) - {self._owner()})
                patch = node_condition(node, kind, bad=held, message=message, now=_now())
                if patch is not None:
                    self._api.ask("PATCH", f"{path}/status", deadline, patch, _STRATEGIC)
            return change

        changed = retrying(change, deadline)
        return Outcome(not changed.wait, f"{host} {changed.said}", ours=changed.ours)

    # -- pods ----------------------------------------------------------------------------------

    def _remove(
        self, _group: GroupName, places: Sequence[Place], others: Sequence[Place], why: Why,
        deadline: Deadline,
    ) -> Outcome:  # fmt: skip
        """Delete the pods that run only this group. A deletion cannot record a reason."""
        pods = self._find(wanted_of(places, others), others, deadline)
        return Outcome(True, self._carry_out(pods, why, deadline))

    def _find(
        self, wanted: Sequence[WantedPod], others: Sequence[Place], deadline: Deadline
    ) -> Sequence[WantedPod]:
        """The wanted pods that still exist; in Primus-SaFE also all other pods of their group.

        Raises:
            NotDone: a pod of the group carries, or may carry, somebody else's rank.
        """
        pods: dict[str, WantedPod] = {}
        for sought in wanted:
            pod = self._look(sought, deadline)
            if pod is None:
                continue
            for body in (pod, *self._group_of(sought.namespace, pod, deadline)):
                each = pod_of(sought.namespace, body)
                refuse_shared_pod(others, each.uid, {each.node, POD_HOST + each.name})
                pods[each.uid] = each
        return tuple(pods[uid] for uid in sorted(pods))

    def _carry_out(self, pods: Sequence[WantedPod], why: Why, deadline: Deadline) -> str:
        """Delete these pods, and wait until they are gone; returns what was done.

        Only a pod whose kubelet does not answer is deleted by force, and only if its processes can
        enter no quorum: they may live on. Where a whole pod stands, WorkerServer included, its host
        is to blame.
        """
        if not pods:
            return "its pods are gone"
        if why.lost is not None:
            for node in {pod.node for pod in pods}:
                why.lost.down(Host(node))
        remaining = [pod for pod in pods if not self._delete(pod, _GRACE_S, deadline)]
        forced: dict[WantedPod, str] = {}
        while remaining := [pod for pod in remaining if self._look(pod, deadline) is not None]:
            words = [f"{', '.join(map(str, remaining))} terminating still"]
            words += [
                self._force(pod, why.lost, forced, deadline)
                for pod in remaining
                if pod not in forced and self._is_lost(pod.node, deadline)
            ]
            words += forced.values()
            deadline.pause(_LOOK_AGAIN_S * len(remaining), "; ".join(filter(None, words)))
        said = ", ".join(str(pod) for pod in pods)
        if forced:
            return f"deleted {said} by force: processes may live on until the node is back"
        return f"deleted {said}"

    def _force(
        self, pod: WantedPod, lost: Lost | None, forced: dict[WantedPod, str], deadline: Deadline
    ) -> str:
        """Delete a pod whose kubelet does not answer, or say what a person can do. Notes in
        `forced` that it did, and what went wrong.
        """
        if lost is not None:
            lost.down(Host(pod.node))  # may this monitor still act?
        if not self._options.force and (lost is None or not lost.fenced()):
            unfenced = (
                f"no kubelet answers on {pod.node}, and no gate refuses the group (or --kube-force)"
            )
            return f"{unfenced}. {by_force(pod.namespace, pod.name, pod.node)}"
        forced[pod] = self._fail(pod, deadline)
        self._delete(pod, 0, deadline)
        return ""

    def _delete(self, pod: WantedPod, grace_s: int, deadline: Deadline) -> bool:
        """Delete a pod; returns whether it is gone already, or a newer one has its name."""
        body = {"gracePeriodSeconds": grace_s, "preconditions": {"uid": pod.uid}}

        def delete() -> bool:
            try:
                self._api.ask("DELETE", f"{_pods(pod.namespace)}/{pod.name}", deadline, body)
            except KubeError as exc:
                if exc.status == 404 or (exc.status == 409 and self._look(pod, deadline) is None):
                    return True
                raise
            self._ended.add(pod.uid)
            return False

        return retrying(delete, deadline)

    def _fail(self, pod: WantedPod, deadline: Deadline) -> str:
        """Mark a pod as failed, as its kubelet would: a Job with `podReplacementPolicy: Failed`
        makes no other before, however the pod was deleted (job_controller.go of 1.34,
        `isPodFailed`). Returns what went wrong.
        """
        condition = {
            "type": "DisruptionTarget",  # no failure of the group's own, for a podFailurePolicy
            "status": "True",
            "reason": "DeletionByLightkeeper",
            "message": f"no kubelet answers on {pod.node}",
            "lastTransitionTime": _now(),
        }
        body = {
            "metadata": {"uid": pod.uid},
            "status": {"phase": "Failed", "reason": "NodeLost", "conditions": [condition]},
        }
        path = f"{_pods(pod.namespace)}/{pod.name}/status"
        try:
            self._api.ask("PATCH", path, deadline, body, _STRATEGIC)
        except KubeError as exc:  # no right (a Job may wait for it), or the pod is gone by now
            return f"not called failed: {exc}"
        return ""

    def _is_lost(self, node: str, deadline: Deadline) -> bool:
        """True if the node's kubelet does not answer; one that is ill and answers deletes pods."""
        if not node:
            return False
        try:
            shown = self._api.ask("GET", f"{_NODES}/{node}", deadline)
        except KubeError as exc:
            return exc.status == 404
        if condition_of(shown, "Ready") not in ("True", "False"):
            return True
        return self._unrenewed_s(node, deadline) >= _UNRENEWED_S

    def _unrenewed_s(self, node: str, deadline: Deadline) -> float:
        """For how long we see that its kubelet has renewed no lease of this node; 0: it renews it,
        or we may not see it. By our clock from the first look on, since kubelets have their own,
        and without a gap between looks: while the API server is away nobody can renew.
        """
        if DNS.fullmatch(node) is None:
            return 0.0
        try:
            lease = self._api.ask("GET", f"{_LEASES}/{node}", deadline)
            renewed = _at(lease, "spec", "renewTime")
        except NotDone:
            self._leases.pop(node, None)
            return 0.0
        if len(self._leases) > _NODES_MOST:
            self._leases.clear()
        now_s = time.monotonic()
        before, since_s, looked_s = self._leases.get(node, (None, now_s, now_s))
        if renewed is None or renewed != before or now_s - looked_s > _LOOKS_APART_S:
            since_s = now_s
        self._leases[node] = renewed, since_s, now_s
        return now_s - since_s

    def _look(self, wanted: WantedPod, deadline: Deadline) -> Body | None:
        """The pod as it is now; None when it is gone."""
        selector = f"spec.nodeName={wanted.node}" if wanted.node else ""
        if wanted.name:
            selector = f"metadata.name={wanted.name}"
        path = _pods(wanted.namespace)
        pods = retrying(lambda: self._api.items(path, deadline, fieldSelector=selector), deadline)
        return next((pod for pod in pods if _at(pod, "metadata", "uid") == wanted.uid), None)

    def _group_of(self, namespace: str, pod: Body, deadline: Deadline) -> Sequence[Body]:
        """All pods of this pod's replica group, if Primus-SaFE is used and has labelled it."""
        labels = _at(pod, "metadata", "labels") or {}
        named = [f"{key}={labels[key]}" for key in (WORKLOAD_LABEL, GROUP_LABEL) if labels.get(key)]
        if self._options.primus_safe is None or len(named) < 2:
            return ()
        selector = ",".join(named)
        return self._api.items(_pods(namespace), deadline, labelSelector=selector)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
