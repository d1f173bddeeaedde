"""What `lightkeeper schedulers check` asks Kubernetes; nothing is changed by it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from monitor.schedulers.deadline import Deadline, TooLate
from monitor.schedulers.kube_api import KubeApi, KubeError
from monitor.schedulers.protocol import Check


def rules(namespaces: Collection[str], *, primus: bool) -> Sequence[Mapping[str, str]]:
    """Everything that the driver asks for; examples/kubernetes grants exactly this."""
    nodes = [{"resource": "nodes", "verb": verb} for verb in ("get", "list", "patch")]
    status = [{"resource": "nodes", "subresource": "status", "verb": "patch"}] if primus else []
    pods = [
        {"resource": "pods", "verb": verb, "namespace": namespace}
        for namespace in sorted(namespaces)
        for verb in ("get", "list", "delete")
    ]
    return [*nodes, *status, *pods]


def checks(api: KubeApi, asked: Sequence[Mapping[str, str]], deadline: Deadline) -> Iterator[Check]:
    """One SelfSubjectAccessReview a rule."""
    for rule in asked:
        what = _words(rule)
        try:
            allowed, why = api.may(rule, deadline)
        except (KubeError, TooLate) as exc:
            yield Check(what, False, str(exc))
            if isinstance(exc, TooLate) or exc.status == 0:
                return  # nobody answers: the others would say the same
        else:
            yield Check(what, allowed, why or ("allowed" if allowed else "not allowed (see RBAC)"))


def _words(rule: Mapping[str, str]) -> str:
    resource = rule["resource"] + (f"/{rule['subresource']}" if "subresource" in rule else "")
    where = f" in {rule['namespace']}" if rule.get("namespace") else ""
    return f"may {rule['verb']} {resource}{where}"
