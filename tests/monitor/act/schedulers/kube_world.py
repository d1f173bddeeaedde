"""A cluster of two nodes on a small API server."""

from __future__ import annotations

import itertools

from lightkeeper.monitor.act.schedulers.base import Place, Scheduler
from lightkeeper.monitor.act.schedulers.kubernetes import KubeApi, KubeOptions, Kubernetes
from tests.monitor.act.schedulers.conformance import NODE, OTHER, OWNER, World, place_of
from tests.monitor.act.schedulers.fake_kube import FakeKube

NAMESPACE = "train"


class KubeWorld(World):
    """Each rank in a pod of its own unless said otherwise."""

    ends = ("context", "runs"), ("leaving", "evicted")

    def __init__(self, kube: FakeKube, url: str, options: KubeOptions | None = None) -> None:
        super().__init__()
        self.kube = kube
        self.url = url
        for name in (NODE, OTHER):
            kube.add_node(name)
        self._names = itertools.count()
        self._open: list[Kubernetes] = []
        self.scheduler = self.made(OWNER, options)

    def made(self, owner: str = OWNER, options: KubeOptions | None = None) -> Kubernetes:
        from kubernetes import client

        configuration = client.Configuration(host=self.url)
        configuration.retries = False
        scheduler = Kubernetes(KubeApi(configuration), self.everyone, lambda: owner, options)
        self._open.append(scheduler)
        return scheduler

    def close(self) -> None:
        for scheduler in self._open:
            scheduler.close()

    def start(self, rank: str, host: str, beside: Place | None = None) -> Place:
        if beside is None:
            name = f"job-worker-{next(self._names)}"
            uid = self.kube.add_pod(NAMESPACE, name, host)
            labels = {"pod": name, "namespace": NAMESPACE, "pod_uid": uid, "node": host}
        else:
            labels = dict(beside.labels)
        place = place_of(rank, host, labels)
        self.places.append(place)
        return place

    def renew(self, place: Place) -> Place:
        name = place.labels["pod"]
        del self.kube.pods[NAMESPACE, name]
        uid = self.kube.add_pod(NAMESPACE, name, place.host)
        new = place_of(place.rank, place.host, {**place.labels, "pod_uid": uid})
        self.places[:] = [new]
        return new

    def runs(self, place: Place) -> bool:
        pod = self.kube.pods.get((NAMESPACE, place.labels["pod"]))
        return pod is not None and pod["metadata"]["uid"] == place.labels["pod_uid"]

    def admits(self, host: str) -> bool:
        spec = self.kube.nodes[host]["spec"]
        kept_out = any(taint["effect"] == "NoSchedule" for taint in spec.get("taints", []))
        return not spec.get("unschedulable") and not kept_out

    def admin_keeps_out(self, host: str) -> None:
        taint = {"key": "example.com/broken", "value": "dimm", "effect": "NoSchedule"}
        self.kube.by_hand(host, {"unschedulable": True, "taints": [taint]}, note="bad DIMM")

    def admin_lets_in(self, host: str) -> None:
        self.kube.by_hand(host, {"unschedulable": False, "taints": []})

    def by_admin(self, host: str) -> bool:
        node = self.kube.nodes[host]
        keys = [taint["key"] for taint in node["spec"].get("taints", [])]
        noted = node["metadata"]["annotations"].get("note") == "bad DIMM"
        return noted and node["spec"]["unschedulable"] is True and "example.com/broken" in keys

    def testifies(self, host: str) -> list[tuple[str, str, str]]:
        return [(host, "leaving", "cordoned")]

    def other_owner(self) -> Scheduler:
        return self.made("other")

    def break_off(self) -> None:
        self.kube.answers = [(503, "the server is currently unable to handle the request")] * 1000

    def hang(self) -> None:
        self.kube.hanging = True
