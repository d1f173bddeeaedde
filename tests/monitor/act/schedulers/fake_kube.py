"""A small API server: nodes and pods, as the Kubernetes API documents them.

resourceVersion and its conflicts, merge and strategic merge patches, preconditions and grace of a
deletion, selectors, the errors' form (Status), and RBAC by the rules of manifests. Every request is
recorded.
"""

from __future__ import annotations

import copy
import itertools
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.http_server import FakeServer, Hang

Body = dict[str, Any]
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


class Refused(Exception):  # noqa: N818 - an answer
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Request:
    """One request, as RBAC sees it, and what it brought."""

    verb: str
    resource: str
    namespace: str
    name: str
    body: Any
    content_type: str


class FakeKube:
    """The state. `allow` says what RBAC grants; None: everything."""

    def __init__(self) -> None:
        self.nodes: dict[str, Body] = {}
        self.pods: dict[tuple[str, str], Body] = {}
        self.leases: dict[str, str] = {}
        """Node -> when its kubelet says that it renewed the lease last."""
        self.requests: list[Request] = []
        self.allow: Callable[[str, str, str], bool] | None = None
        self.answers: list[tuple[int, str]] = []
        """Given instead, one a request, before anything is looked at."""
        self.before_patch: list[Callable[[], None]] = []
        """What somebody else does just before a patch arrives, one a patch."""
        self.lingering = False
        """Whether deleted pods stay, terminating, unless deleted by force."""
        self.of_a_job = False
        """Whether a Job with `podReplacementPolicy: Failed` has them: a pod goes when failed."""
        self.hanging = False
        self.lock = threading.RLock()
        self._versions = itertools.count(1000)
        self._uids = itertools.count(1)

    # -- as people and kubelets do -------------------------------------------------------------

    def add_node(self, name: str, *, ready: bool = True) -> None:
        status = {"conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}]}
        meta = {"name": name, "labels": {"kubernetes.io/hostname": name}, "annotations": {}}
        self.nodes[name] = {"kind": "Node", "metadata": meta, "spec": {}, "status": status}
        self.touch(self.nodes[name])

    def set_ready(self, name: str, status: str) -> None:
        self.nodes[name]["status"]["conditions"] = [{"type": "Ready", "status": status}]

    def add_pod(self, namespace: str, name: str, node: str, **labels: str) -> str:
        uid = f"00000000-0000-4000-8000-{next(self._uids):012d}"
        meta = {"name": name, "namespace": namespace, "uid": uid, "labels": labels}
        self.pods[namespace, name] = {
            "kind": "Pod", "metadata": meta, "spec": {"nodeName": node},
            "status": {"phase": "Running"},
        }  # fmt: skip
        self.touch(self.pods[namespace, name])
        return uid

    def touch(self, thing: Body) -> None:
        thing["metadata"]["resourceVersion"] = str(next(self._versions))

    def by_hand(self, name: str, spec: Mapping[str, Any] | None = None, **annotations: Any) -> None:
        """Somebody changes a node."""
        node = self.nodes[name]
        node["spec"].update(spec or {})
        node["metadata"]["annotations"].update(annotations)
        self.touch(node)

    # -- the API -------------------------------------------------------------------------------

    def answer(self, method: str, url: str, body: Any, content_type: str) -> tuple[int, Body]:
        parts = urlsplit(url)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        path = parts.path.strip("/").split("/")
        try:
            with self.lock:
                return self._route(method, path, query, body, content_type)
        except Refused as exc:
            said = {"kind": "Status", "status": "Failure", "code": exc.status, "message": str(exc)}
            return exc.status, said

    def _route(
        self, method: str, path: Sequence[str], query: Mapping[str, str], body: Any, kind: str
    ) -> tuple[int, Body]:
        if path[:2] == ["apis", "authorization.k8s.io"]:
            self.requests.append(Request("create", path[-1], "", "", body, kind))
            if self.answers:
                raise Refused(*self.answers.pop(0))
            return 201, self._review(body)
        core = list(path[:2]) == ["api", "v1"]
        assert core or list(path[:3]) == ["apis", "coordination.k8s.io", "v1"], path
        rest = list(path[2 if core else 3 :])
        namespace = rest[1] if rest[0] == "namespaces" else ""
        resource, name, sub = (rest[2:] if namespace else rest) + [""] * (
            3 - len(rest[2:] if namespace else rest)
        )
        verbs = {"GET": "get" if name else "list", "PATCH": "patch", "DELETE": "delete"}
        full = f"{resource}/{sub}" if sub else resource
        self.requests.append(Request(verbs[method], full, namespace, name, body, kind))
        if self.answers:
            raise Refused(*self.answers.pop(0))
        if self.allow is not None and not self.allow(verbs[method], full, namespace):
            who = "system:serviceaccount:lightkeeper:lightkeeper"
            raise Refused(403, f'{full} is forbidden: User "{who}" cannot {verbs[method]} {full}')
        match method, resource, bool(name):
            case "GET", _, False:
                return 200, self._list(resource, namespace, query)
            case "GET", _, True:
                return 200, self._find(resource, namespace, name)
            case "PATCH", "nodes", True:
                return 200, self._patch(name, sub, body, kind)
            case "PATCH", "pods", True:
                assert (sub, kind) == ("status", STRATEGIC)
                return 200, self._call(namespace, name, body)
            case "DELETE", "pods", True:
                return 200, self._delete(namespace, name, body or {})
        raise Refused(405, f"{method} {resource}")

    def _review(self, body: Body) -> Body:
        rule = body["spec"]["resourceAttributes"]
        full = rule["resource"] + (f"/{rule['subresource']}" if rule.get("subresource") else "")
        ok = self.allow is None or self.allow(rule["verb"], full, rule.get("namespace", ""))
        return {"kind": "SelfSubjectAccessReview", "status": {"allowed": ok}}

    def _find(self, resource: str, namespace: str, name: str) -> Body:
        item = self.nodes.get(name) if resource == "nodes" else self.pods.get((namespace, name))
        if resource == "leases" and namespace == "kube-node-lease" and name in self.leases:
            item = {"kind": "Lease", "spec": {"renewTime": self.leases[name]}}
        if item is None:
            raise Refused(404, f'{resource} "{name}" not found')
        return copy.deepcopy(item)

    def _list(self, resource: str, namespace: str, query: Mapping[str, str]) -> Body:
        items = list(self.nodes.values()) if resource == "nodes" else [
            pod for (where, _), pod in self.pods.items() if where == namespace
        ]  # fmt: skip
        for pair in filter(None, query.get("labelSelector", "").split(",")):
            key, equals, value = pair.partition("=")
            labels = [(item, item["metadata"].get("labels", {})) for item in items]
            items = [
                item for item, has in labels if key in has and (not equals or has[key] == value)
            ]
        field = query.get("fieldSelector", "")
        if field:
            key, _, value = field.partition("=")
            part, _, name = key.partition(".")
            assert key in ("metadata.name", "spec.nodeName"), key
            items = [item for item in items if item[part].get(name) == value]
        return {"kind": "List", "items": copy.deepcopy(items)}

    def _patch(self, name: str, sub: str, body: Body, kind: str) -> Body:
        if self.before_patch:
            self.before_patch.pop(0)()
        node = self.nodes.get(name)
        if node is None:
            raise Refused(404, f'nodes "{name}" not found')
        wanted = (body.get("metadata") or {}).get("resourceVersion")
        if wanted is not None and wanted != node["metadata"]["resourceVersion"]:
            said = f'Operation cannot be fulfilled on nodes "{name}": the object has been modified'
            raise Refused(409, said)
        if sub == "status":
            assert kind == STRATEGIC, kind
            assert set(body) == {"status"}
            for condition in body["status"]["conditions"]:
                rest = [c for c in node["status"]["conditions"] if c["type"] != condition["type"]]
                node["status"]["conditions"] = [*rest, condition]
        else:
            assert kind == MERGE, kind
            assert "status" not in body  # ignored by a real server: nodes has a status subresource
            self.nodes[name] = node = _merged(node, body)
        self.touch(node)
        return copy.deepcopy(node)

    def _call(self, namespace: str, name: str, body: Body) -> Body:
        pod = self._find("pods", namespace, name)
        if body["metadata"]["uid"] != pod["metadata"]["uid"]:
            raise Refused(422, f'Pod "{name}" is invalid: metadata.uid: field is immutable')
        self.pods[namespace, name] = _merged(pod, {"status": body["status"]})
        return self.pods[namespace, name]

    def _delete(self, namespace: str, name: str, body: Body) -> Body:
        pod = self._find("pods", namespace, name)
        uid = (body.get("preconditions") or {}).get("uid")
        if uid is not None and uid != pod["metadata"]["uid"]:
            raise Refused(409, f"Precondition failed: UID in precondition: {uid}, UID in object")
        stays = self.lingering and body.get("gracePeriodSeconds") != 0
        failed = pod.get("status", {}).get("phase") == "Failed"
        if stays or (self.of_a_job and not failed):
            self.pods[namespace, name]["metadata"]["deletionTimestamp"] = "2026-11-22T02:14:39Z"
        else:
            del self.pods[namespace, name]
        return pod


def _merged(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    made = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = _merged(made.get(key), value)
    return made


class Served(FakeServer):
    """It over HTTP."""

    def __init__(self, kube: FakeKube) -> None:
        super().__init__()
        self._kube = kube

    def serve(self, handler: Any, method: str, path: str, body: bytes) -> None:
        if self._kube.hanging:
            raise Hang
        kind = (handler.headers.get("Content-Type") or "").partition(";")[0]
        status, said = self._kube.answer(method, path, json.loads(body) if body else None, kind)
        handler.reply(status, "application/json", json.dumps(said).encode())
