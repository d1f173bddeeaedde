"""The requests to Kubernetes that a scheduler needs, by the official client, as plain JSON.

Plain JSON and not the client's models: they cost 3 MB of parsing for what is five fields, and drop
what a newer server says. The client brings kubeconfig, in-cluster tokens and their renewal, exec
plugins, proxies and TLS.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from monitor.schedulers.deadline import Deadline

if TYPE_CHECKING:
    from kubernetes import client

MISSING: Final = "its client is not installed: pip install 'lightkeeper[kubernetes]'"
BODY_MAX_BYTES: Final = 64 * 1024 * 1024
_MERGE: Final = "application/merge-patch+json"
_PASSING: Final = frozenset({409, 410, 429, 500, 502, 503, 504})
"""Worth another look: somebody changed it meanwhile, or the server is busy or restarts."""
_LAST_CALL_S: Final = 0.25


class KubeUnusableError(Exception):
    """There is no client, or no cluster is configured; the message is one line for a person."""


class KubeError(Exception):
    """An answer other than 2xx, or none; the message is one line for a person."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status = status

    @property
    def passing(self) -> bool:
        """Whether it may be otherwise in a moment."""
        return self.status in _PASSING or self.status == 0


def configured(context: str | None = None) -> client.Configuration:
    """In a pod its service account, elsewhere the kubeconfig (KUBECONFIG).

    Raises:
        KubeUnusableError: neither, or no client.
    """
    try:
        from kubernetes import client, config  # noqa: PLC0415 - an extra, 0.5 s to import
    except ImportError as exc:
        raise KubeUnusableError(MISSING) from exc
    made = client.Configuration()
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ and not os.environ.get("KUBECONFIG"):
            config.load_incluster_config(client_configuration=made)
        else:
            config.load_kube_config(context=context, client_configuration=made)
    except (config.ConfigException, OSError, ValueError) as exc:
        raise KubeUnusableError(f"no cluster is configured: {_line(exc)}") from exc
    made.retries = False  # a retry is ours to make, within the deadline
    return made


class KubeApi:
    """One cluster. Each call takes what is left of a deadline.

    Raises:
        KubeUnusableError: the client is not installed.
    """

    def __init__(self, configuration: client.Configuration) -> None:
        try:
            from kubernetes import client  # noqa: PLC0415
        except ImportError as exc:
            raise KubeUnusableError(MISSING) from exc
        self._client = client.ApiClient(configuration)
        self._core = client.CoreV1Api(self._client)
        self._merging = client.ApiClient(configuration)
        # Clients before 35 take no `_content_type`; left alone, all send a strategic merge patch.
        self._merging.set_default_header("Content-Type", _MERGE)
        self._merges = client.CoreV1Api(self._merging)
        self._review = client.AuthorizationV1Api(self._client)

    def node(self, name: str, deadline: Deadline) -> Mapping[str, Any]:
        """One node."""
        return self._ask(self._core.read_node, deadline, name)

    def nodes(self, label: str, deadline: Deadline) -> Sequence[Mapping[str, Any]]:
        """All nodes with a label."""
        return _items(self._ask(self._core.list_node, deadline, label_selector=label))

    def patch_node(self, name: str, patch: Mapping[str, Any], deadline: Deadline) -> None:
        """A merge patch."""
        self._ask(self._merges.patch_node, deadline, name, dict(patch))

    def patch_status(self, name: str, patch: Mapping[str, Any], deadline: Deadline) -> None:
        """A strategic merge patch of nodes/status."""
        self._ask(self._core.patch_node_status, deadline, name, dict(patch))

    def pod(self, namespace: str, name: str, deadline: Deadline) -> Mapping[str, Any]:
        """One pod."""
        return self._ask(self._core.read_namespaced_pod, deadline, name, namespace)

    def pods(
        self, namespace: str, deadline: Deadline, *, node: str = "", label: str = ""
    ) -> Sequence[Mapping[str, Any]]:
        """The pods of a namespace, on one node or with these labels."""
        selected = {"field_selector": f"spec.nodeName={node}"} if node else {}
        labelled = {"label_selector": label} if label else {}
        asked = self._ask(
            self._core.list_namespaced_pod, deadline, namespace, **selected, **labelled
        )
        return _items(asked)

    def delete_pod(
        self, namespace: str, name: str, uid: str, grace_s: int, deadline: Deadline
    ) -> None:
        """Delete this pod, and no newer one of its name."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": grace_s,
            "preconditions": {"uid": uid},
        }
        self._ask(self._core.delete_namespaced_pod, deadline, name, namespace, body=body)

    def may(self, rule: Mapping[str, str], deadline: Deadline) -> tuple[bool, str]:
        """Whether we may do something (a SelfSubjectAccessReview, which changes nothing)."""
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": dict(rule)},
        }
        said = self._ask(self._review.create_self_subject_access_review, deadline, body)
        status = said.get("status") or {}
        return status.get("allowed") is True, _line(status.get("reason") or "")

    def close(self) -> None:
        """Close connections."""
        for one in (self._client, self._merging):
            with contextlib.suppress(Exception):
                one.close()

    def _ask(
        self, call: Callable[..., Any], deadline: Deadline, *args: Any, **options: Any
    ) -> Mapping[str, Any]:
        left_s = max(deadline.left_s(), _LAST_CALL_S)
        try:
            said = call(*args, **options, _preload_content=False, _request_timeout=left_s)
            status, raw = int(said.status), said.read(BODY_MAX_BYTES)
        except Exception as exc:
            raise _translated(exc) from exc
        if not 200 <= status < 300:
            raise KubeError(status, _told(status, raw))
        try:
            found = json.loads(raw)
        except (ValueError, RecursionError) as exc:
            raise KubeError(0, "the API server's answer is no JSON") from exc
        return found if isinstance(found, dict) else {}


def _translated(exc: Exception) -> KubeError:
    status = getattr(exc, "status", None)
    if isinstance(status, int) and status:
        return KubeError(status, _told(status, getattr(exc, "body", None) or b""))
    return KubeError(0, _line(exc))


def _told(status: int, raw: bytes | str) -> str:
    try:
        said = json.loads(raw)
        words = str(said.get("message") or said.get("reason") or "")
    except (ValueError, AttributeError, RecursionError):
        words = ""
    return f"the API server answers {status}" + (f": {_line(words)}" if words else "")


def _items(body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [one for one in body.get("items") or [] if isinstance(one, dict)]


def _line(what: object) -> str:
    return " ".join(str(what).split())[:300]
