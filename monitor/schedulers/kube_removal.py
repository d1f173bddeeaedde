"""Finds the pods of a group as they are now, and deletes exactly these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from monitor.names import GroupName
from monitor.schedulers import kube_node
from monitor.schedulers.deadline import Deadline, TooLate
from monitor.schedulers.kube_api import KubeApi, KubeError
from monitor.schedulers.kube_pods import (
    Wanted,
    group_selector,
    name_of,
    node_of,
    uid_of,
)
from monitor.schedulers.protocol import Place
from monitor.schedulers.sharing import Refusal, in_pod, strangers

if TYPE_CHECKING:
    from monitor.schedulers.kube import KubeOptions

POD_HOST: Final = "pod:"
"""Begins the host of a rank whose pod was not told its node: see `worker_server.identity`."""
_LOOK_AGAIN_S: Final = 0.25


class Deletion:
    """One request's."""

    def __init__(self, api: KubeApi, options: KubeOptions, deadline: Deadline) -> None:
        self._api = api
        self._options = options
        self._deadline = deadline

    def find(
        self, group: GroupName, wanted: Sequence[Wanted], everyone: Sequence[Place]
    ) -> Sequence[Wanted]:
        """The wanted pods that still are there; in Primus-SaFE with all others of their group.

        Raises:
            Refusal: a pod of the group carries, or may carry, somebody else's rank.
        """
        found: dict[str, Wanted] = {}
        others = strangers(group, everyone)
        for one in wanted:
            pod = self._look(one)
            if pod is None:
                continue
            for each in (pod, *self._group_of(one.namespace, pod)):
                uid, node = uid_of(each), node_of(each)
                obstacle = in_pod(others, uid, {node, POD_HOST + name_of(each)})
                if obstacle is not None:
                    raise Refusal(obstacle)
                found[uid] = Wanted(one.namespace, uid, name_of(each), node)
        return tuple(found[uid] for uid in sorted(found))

    def carry_out(self, pods: Sequence[Wanted]) -> str:
        """Delete these, and wait until they are gone; what was done."""
        if not pods:
            return "its pods are gone"
        forced = [self._delete(one) for one in pods]
        left = list(pods)
        while left:
            left = [one for one in left if self._look(one) is not None]
            if left:
                self._pause(f"{', '.join(map(str, left))} terminating still")
        said = ", ".join(str(one) for one in pods)
        if any(forced):
            return f"deleted {said} by force: processes may live on until the node is back"
        return f"deleted {said}"

    def _delete(self, pod: Wanted) -> bool:
        """Whether it had to be by force."""
        force = self._options.force and self._is_lost(pod.node)
        grace_s = 0 if force else self._options.grace_s
        while True:
            try:
                self._api.delete_pod(pod.namespace, pod.name, pod.uid, grace_s, self._deadline)
            except KubeError as exc:
                if exc.status == 404 or (exc.status == 409 and self._look(pod) is None):
                    return False  # gone, or a newer one bears its name
                if not exc.passing:
                    raise
                self._pause(str(exc))
            else:
                return force

    def _is_lost(self, node: str) -> bool:
        if not node:
            return False
        try:
            return not kube_node.is_ready(self._api.node(node, self._deadline))
        except KubeError as exc:
            return exc.status == 404

    def _look(self, wanted: Wanted) -> Mapping[str, Any] | None:
        """The pod as it is now; None when it is gone."""
        while True:
            try:
                return self._read(wanted)
            except KubeError as exc:
                if not exc.passing:
                    raise
                self._pause(str(exc))

    def _read(self, wanted: Wanted) -> Mapping[str, Any] | None:
        if wanted.name:
            try:
                pod = self._api.pod(wanted.namespace, wanted.name, self._deadline)
            except KubeError as exc:
                if exc.status == 404:
                    return None
                raise
            return pod if uid_of(pod) == wanted.uid else None
        pods = self._api.pods(wanted.namespace, self._deadline, node=wanted.node)
        return next((pod for pod in pods if uid_of(pod) == wanted.uid), None)

    def _group_of(self, namespace: str, pod: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Pods of the same replica group that told nobody where they are."""
        selector = None if self._options.primus_safe is None else group_selector(pod)
        return () if selector is None else self._api.pods(namespace, self._deadline, label=selector)

    def _pause(self, why: str) -> None:
        try:
            self._deadline.pause(_LOOK_AGAIN_S)
        except TooLate as exc:
            raise Refusal(why) from exc
