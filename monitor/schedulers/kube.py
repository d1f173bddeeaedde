"""Kubernetes, by the official client: cordon and taint a node, delete the pods of a group.

Theory of operation. What changes on a node is computed in `kube_node` from the node as it was read,
and sent with its resourceVersion; a conflict is read and computed again, within the deadline. A pod
is deleted with its uid as precondition, so that a newer one of the same name is never hit, and the
request counts as done when the pod is gone. Each request runs in a thread that is given up at the
deadline, because the client's own timeout begins again with every piece that arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from monitor.names import GroupName, Host, IncidentId
from monitor.schedulers import kube_checks, kube_node
from monitor.schedulers.aside import Busy, aside
from monitor.schedulers.deadline import Clockwork, Deadline, TooLate
from monitor.schedulers.kube_api import KubeApi, KubeError
from monitor.schedulers.kube_node import Change
from monitor.schedulers.kube_pods import DNS, wanted_of
from monitor.schedulers.kube_removal import POD_HOST, Deletion
from monitor.schedulers.protocol import Check, Everyone, Outcome, Owner, Place
from monitor.schedulers.sharing import Refusal
from monitor.schedulers.wording import marked

_RETRY_S: Final = 0.2
PRIMUS_PREFIX: Final = "primus-safe."

Condition = tuple[bool, Callable[[], str]]
"""What Primus-SaFE is told: whether the node is bad, and why."""


@dataclass(frozen=True, slots=True)
class KubeOptions:
    """What differs between clusters."""

    grace_s: int = 5
    """Between SIGTERM and SIGKILL of a pod. A group that is evicted hangs or is wrong, and leaves
    no checkpoint; longer keeps its host longer."""
    force: bool = False
    """Whether a pod on a node that is not ready is deleted without waiting for its kubelet. Its
    processes may live on there until the node is back; without it, the pod stays Terminating."""
    primus_safe: str | None = None
    """Id of Primus-SaFE's monitor by which it is told, as NodeCondition `primus-safe.ID`."""


class Kubernetes:
    """One cluster."""

    name = "kubernetes"

    def __init__(
        self,
        api: KubeApi,
        everyone: Everyone,
        owner: Owner,
        options: KubeOptions | None = None,
        *,
        clockwork: Clockwork | None = None,
    ) -> None:
        """`owner` names the quarantine list whose holds are ours."""
        self._api = api
        self._everyone = everyone
        self._owner = owner
        self._options = options or KubeOptions()
        self._clockwork = clockwork or Clockwork()

    def cordon(
        self, host: Host, reason: str, incident_id: IncidentId | None, timeout_s: float
    ) -> Outcome:
        """Cordon, taint and annotate the node."""

        def compute(node: Any) -> Change:
            return kube_node.cordon(node, self._owner(), reason, incident_id, _now())

        def said() -> str:
            return marked(self._owner(), reason, incident_id, kube_node.REASON_MAX_CHARS)

        return self._change(host, compute, (True, said), timeout_s)

    def uncordon(self, host: Host, reason: str, timeout_s: float) -> Outcome:
        """Take back our hold, and with the last hold taint and cordon."""

        def compute(node: Any) -> Change:
            return kube_node.uncordon(node, self._owner())

        return self._change(host, compute, (False, lambda: reason), timeout_s)

    def remove(
        self,
        group: GroupName,
        places: Sequence[Place],
        reason: str,
        incident_id: IncidentId | None,
        timeout_s: float,
    ) -> Outcome:
        """Delete the pods in which the group runs and nobody else."""
        del reason, incident_id  # a deletion has no place for them

        def work(deadline: Deadline) -> Outcome:
            everyone = self._everyone()
            wanted = wanted_of(group, places, everyone)
            deletion = Deletion(self._api, self._options, deadline)
            pods = deletion.find(group, wanted, everyone)
            return Outcome(True, f"{deletion.carry_out(pods)}")

        return self._within(timeout_s, work, f"{group} not removed")

    def cordoned(self, timeout_s: float) -> Sequence[Host] | None:
        """The nodes that we hold."""

        def work(deadline: Deadline) -> Sequence[Host]:
            owner = self._owner()
            found = self._api.nodes(kube_node.KEY, deadline)
            own = [one for one in found if owner in kube_node.hold_of(one).by]
            return tuple(sorted(Host(str(one["metadata"]["name"])) for one in own))

        try:
            return aside(lambda: work(Deadline(timeout_s, self._clockwork)), timeout_s)
        except Exception:  # noqa: BLE001 - whatever it is, what is ours is not known
            return None

    def checks(self, timeout_s: float) -> Sequence[Check]:
        """Server, and what we may do there."""
        namespaces = {one.labels.get("namespace", "") for one in self._everyone()} - {""}
        asked = kube_checks.rules(namespaces or {""}, primus=self._options.primus_safe is not None)

        def work() -> Sequence[Check]:
            deadline = Deadline(timeout_s, self._clockwork)
            return tuple(kube_checks.checks(self._api, asked, deadline))

        try:
            return aside(work, timeout_s)
        except (TooLate, Busy) as exc:
            return (Check("the API server answers", False, str(exc)),)

    def close(self) -> None:
        """Close connections."""
        self._api.close()

    # -- nodes ---------------------------------------------------------------------------------

    def _change(
        self,
        host: Host,
        compute: Callable[[Any], Change],
        condition: Condition,
        timeout_s: float,
    ) -> Outcome:
        def work(deadline: Deadline) -> Outcome:
            change = self._agree(_node_name(host), compute, condition, deadline)
            said = f"{host} {change.said}"
            return Outcome(not change.wait, said, ours=change.ours)

        return self._within(timeout_s, work, f"{host} not changed")

    def _agree(
        self,
        name: str,
        compute: Callable[[Any], Change],
        condition: Condition,
        deadline: Deadline,
    ) -> Change:
        """Read, compute, write; once more when somebody else wrote in between."""
        while True:
            try:
                node = self._api.node(name, deadline)
                change = compute(node)
                if change.patch is not None:
                    self._api.patch_node(name, change.patch, deadline)
                if not change.wait:
                    self._tell_primus(name, node, condition, deadline)
            except KubeError as exc:
                if not exc.passing:
                    raise
                _pause(deadline, exc)
            else:
                return change

    def _tell_primus(self, name: str, node: Any, condition: Condition, deadline: Deadline) -> None:
        if self._options.primus_safe is None:
            return
        bad, message = condition[0], condition[1]()
        bad = bad or bool(set(kube_node.hold_of(node).by) - {self._owner()})
        kind = PRIMUS_PREFIX + self._options.primus_safe
        patch = kube_node.condition(node, kind, bad=bad, message=message, now=_now())
        if patch is not None:
            self._api.patch_status(name, patch, deadline)

    def _within(
        self, timeout_s: float, work: Callable[[Deadline], Outcome], failed: str
    ) -> Outcome:
        try:
            return aside(lambda: work(Deadline(timeout_s, self._clockwork)), timeout_s)
        except (KubeError, Refusal, TooLate, Busy) as exc:
            return Outcome(False, f"{failed}: {exc}")
        except Exception as exc:  # noqa: BLE001 - the client's, or an object of an unknown shape
            return Outcome(False, f"{failed}: {type(exc).__name__}: {exc}"[:300])


def _node_name(host: Host) -> str:
    if host.startswith(POD_HOST):
        raise Refusal("its pod was not told its node (set K8S_NODE_NAME by the downward API)")
    if DNS.fullmatch(host) is None:
        raise Refusal(f"{host!r:.80} is no name of a node")
    return host


def _pause(deadline: Deadline, why: KubeError) -> None:
    try:
        deadline.pause(_RETRY_S)
    except TooLate:
        raise why from None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
