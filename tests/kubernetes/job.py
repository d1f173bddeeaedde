"""A job on the lab, put there as docs/deploy.md says: an overlay of new-overlay.sh, applied."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import time
from pathlib import Path
from typing import Any, Final

import requests

from experiments.harness import StepLog, say
from tests.kubernetes import chart, jobset, lab
from tests.kubernetes.lab import KEEPER, MARK, NODES, TRAIN, LabError, kubectl, until

GROUPS: Final = ("rg_0", "rg_1")
RANKS: Final = 2
CHECKPOINT_EVERY: Final = 50
_VALUES: Final = """\
TRAIN_IMAGE={train}
KEEPER_IMAGE={keeper}
RANKS_PER_GROUP={ranks}
GPUS_PER_GROUP=0
CPU=1050m
MEMORY=3Gi
SHM=256Mi
CHECKPOINTS=1Gi
TRAIN='{script}'
"""
_TRAIN: Final = """\
-m lightkeeper.trainer.train --steps=0 --log-every=1 --step-time={step_s}
 --status-file=/checkpoints/status/$(POD_NAME).jsonl
 --checkpoint-dir=/checkpoints --checkpoint-every={every} --resume"""
"""As a user's. CPU: two groups do not fit on a node of two cores beside any control plane."""
_LAB: Final = """\
# What this lab is not: it has no images with torch on its nodes, and its cores are few.
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
  - ../my-job
  - volumes.yaml
patches:
  - target: {kind: Job}
    patch: |
      - {op: add, path: /spec/template/spec/volumes/-,
         value: {name: libraries, persistentVolumeClaim: {claimName: libraries, readOnly: true}}}
      - {op: add, path: /spec/template/spec/containers/0/volumeMounts/-,
         value: {name: libraries, mountPath: /libraries, readOnly: true}}
  - target: {kind: Deployment, name: lighthouse}
    patch: |
      - {op: add, path: /spec/template/spec/volumes/-,
         value: {name: libraries, persistentVolumeClaim: {claimName: libraries, readOnly: true}}}
      - {op: add, path: /spec/template/spec/containers/0/volumeMounts/-,
         value: {name: libraries, mountPath: /libraries, readOnly: true}}
      - {op: replace, path: /spec/template/spec/containers/0/resources/requests/cpu, value: 200m}
  - target: {kind: Deployment, name: lightkeeper-gate}
    patch: |
      - {op: replace, path: /spec/template/spec/containers/0/resources/requests/cpu, value: 200m}
  - target: {kind: Deployment, name: lightkeeper$}
    patch: |
      - {op: replace, path: /spec/template/spec/containers/0/resources/requests/cpu, value: 300m}
      - {op: remove, path: /spec/template/spec/containers/0/args/6}
"""
_VOLUME: Final = """\
---
apiVersion: v1
kind: PersistentVolume
metadata: {{name: {name}}}
spec:
  capacity: {{storage: 20Gi}}
  accessModes: [{mode}]
  persistentVolumeReclaimPolicy: Retain
  claimRef: {{namespace: {namespace}, name: {claim}}}
  hostPath: {{path: {path}}}
"""
_LIBRARIES: Final = """\
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: libraries, namespace: train}
spec:
  accessModes: [ReadOnlyMany]
  resources: {requests: {storage: 20Gi}}
"""


class Job:
    """Two groups of two ranks, a gate (or none), a Lighthouse and a monitor."""

    def __init__(
        self, step_s: float, *, gate: bool = True, more: str = "", jobset: int = 0,
        helm: bool = False,
    ) -> None:  # fmt: skip
        """`more`: manifests beside the job's; `jobset`: nodes of a group, which is a JobSet;
        `helm`: monitor, gate and Lighthouse by the chart.
        """
        self.step_s, self.gate, self._more, self._jobset = step_s, gate, more, jobset
        self._values = chart.values(len(GROUPS), gate=gate) if helm else None
        self._release = lab.FOLDER / "release"
        """There is one, or was: its objects are not kustomize's."""
        self.api = lab.Api()
        self._volumes = lab.FOLDER / "volumes"
        self._status = self._volumes / "checkpoints/status"
        self._logs: dict[str, StepLog] = {}
        self._kind = lab.FOLDER / "job.json"
        """What the job there is like, when it was whole."""
        self._monitors: list[dict[str, Any]] = []
        self._http = requests.Session()
        self._http.trust_env = False

    # -- from the start to the end -----------------------------------------------------------------

    def start(self) -> None:
        """Fresh, or the same job if it is as good as new. Groups train together when it returns.

        Raises:
            LabError: it does not come up.
        """
        kind = json.dumps([self.step_s, self.gate, self._more, self._jobset, self._values])
        if self._kind.exists() and self._kind.read_text() == kind and self._good():
            say("the same job goes on")
            return
        self._kind.unlink(missing_ok=True)
        self._logs.clear()  # of the job before
        if self._jobset:
            jobset.install()
        say(f"a job with steps of {self.step_s} s, {'with' if self.gate else 'without'} a gate")
        clear()
        if self._values or self._release.exists():
            chart.gone()
            self._release.unlink(missing_ok=True)
        overlay = self._write()
        self._secrets()
        if self._more:
            kubectl("apply", "-f", "-", input=self._more)
        kubectl("cordon", "node-a", "node-b")  # so that the control plane is on node-c,
        if self._values:
            self._release.touch()
            chart.operators_kinds()
            self.upgrade()
        kubectl("apply", "-k", overlay, "-l", "!lightkeeper.dev/group-id", limit_s=60)
        until("the control plane is up", self._control_plane, 120)
        kubectl("uncordon", "node-a", "node-b")
        kubectl("cordon", "node-c")  # and ranks are not
        kubectl("apply", "-k", overlay, limit_s=60)
        until("all groups train together", self.together, 240)
        kubectl("uncordon", "node-c")
        until("the monitor sees all ranks healthy", self.healthy, 60)
        self._kind.write_text(kind)

    def upgrade(self, **changed: dict[str, Any]) -> None:
        """The release, to its values with these parts changed."""
        assert self._values is not None, "this job is kustomize's"
        given = {name: {**part, **changed.get(name, {})} for name, part in self._values.items()}
        patch = only(_LAB, "lighthouse")
        chart.install(given, chart.renderer(lab.FOLDER / "build/chart", patch))

    def _good(self) -> bool:
        """Whether nothing of what was done to the job is left."""
        try:
            spoiled = self.ask("/v1/snapshot")["quarantine"] + [
                node for node in self.api.nodes()
                if node["spec"].get("unschedulable") or lab.condition(node, "Ready") != "True"
            ]  # fmt: skip
            apart = not {self.node(group) for group in GROUPS} & {
                pod["spec"]["nodeName"]
                for pod in self.api.pods("train")
                if "app" in pod["metadata"]["labels"]
            }
            return apart and not spoiled and self.healthy() and self.together(100)
        except (LabError, requests.RequestException, ValueError, KeyError):
            return False

    def _write(self) -> Path:
        """The user's overlay, and around it what the lab needs; the folder to apply."""
        examples = lab.FOLDER / "examples"
        shutil.rmtree(examples, ignore_errors=True)
        shutil.copytree(lab.ROOT / "examples", examples)
        kubernetes = examples / "kubernetes"
        script = _TRAIN.format(step_s=self.step_s, every=CHECKPOINT_EVERY)
        values = kubernetes / "my-values.env"
        text = _VALUES.format(train=TRAIN, keeper=KEEPER, ranks=RANKS, script=script)
        values.write_text(text + "CHART=1\n" * bool(self._values))
        lab.call("sh", kubernetes / "new-overlay.sh", "my-job", str(len(GROUPS)), "1", values)
        overlay = kubernetes / "my-job/kustomization.yaml"
        if not self.gate and not self._values:
            overlay.write_text(overlay.read_text().replace("components:\n  - ../gate\n", ""))
        if self._jobset:
            sets = jobset.groups(GROUPS, script, self._jobset)
            (kubernetes / "my-job/groups.yaml").write_text(sets)
            lines = "".join(f"  - {group}\n" for group in GROUPS)
            overlay.write_text(overlay.read_text().replace(lines, "  - groups.yaml\n"))
        around = kubernetes / "lab"
        around.mkdir()
        made = _LAB if self.gate else without(_LAB, "lightkeeper-gate")
        for name in ("lighthouse", "lightkeeper-gate", "lightkeeper$") if self._values else ():
            made = without(made, name)
        around.joinpath("kustomization.yaml").write_text(made)
        state = self._volumes / "state"
        for folder in (state, self._volumes / "checkpoints", self._status):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o777)
        rows = (
            ("state", "ReadWriteOnce", "lightkeeper", "lightkeeper-state", state),
            ("checkpoints", "ReadWriteMany", "train", "checkpoints", self._volumes / "checkpoints"),
            ("libraries", "ReadOnlyMany", "train", "libraries", lab.FOLDER / "libraries"),
        )
        volumes = [
            _VOLUME.format(name=name, mode=mode, namespace=namespace, claim=claim, path=path)
            for name, mode, namespace, claim, path in rows
        ]
        around.joinpath("volumes.yaml").write_text("".join([*volumes, _LIBRARIES]))
        return around

    def _secrets(self) -> None:
        token = lab.FOLDER / "run/token"
        if not token.exists():
            token.touch(mode=0o600)
            token.write_text(secrets.token_urlsafe(32))
        for namespace in ("lightkeeper", "train"):
            kubectl("create", "namespace", namespace, check=False)
            if self._values:  # the chart makes the secret
                continue
            kubectl("-n", namespace, "create", "secret", "generic", "lightkeeper-token",
                    f"--from-file=token={token}", check=False)  # fmt: skip

    def _control_plane(self) -> bool:
        wants = {("train", "lighthouse"), ("lightkeeper", "lightkeeper")}
        if self.gate:
            wants.add(("train", "lightkeeper-gate"))
        return all(self.ready(namespace, app) for namespace, app in wants)

    # -- what is there -----------------------------------------------------------------------------

    def ready(self, namespace: str, app: str) -> list[dict[str, Any]]:
        """Pods of a Deployment that are Ready and not about to end."""
        return [pod for pod in self.api.pods(namespace)
                if pod["metadata"]["labels"].get("app") == app
                and "deletionTimestamp" not in pod["metadata"]
                and lab.condition(pod, "Ready") == "True"]  # fmt: skip

    def pod(self, app: str, namespace: str = "train") -> dict[str, Any]:
        """The pod of the gate, the Lighthouse, the monitor."""
        [pod] = self.ready(namespace, app)
        return pod

    def group_pod(self, group: str) -> dict[str, Any]:
        """The newest pod of a replica group that runs."""
        pods = [pod for pod in self.api.pods("train")
                if pod["metadata"]["labels"].get("lightkeeper.dev/group-id") == group
                and pod["status"]["phase"] == "Running"]  # fmt: skip
        if not pods:
            raise LabError(f"no pod of {group} runs")
        return max(pods, key=lambda pod: pod["metadata"]["creationTimestamp"])

    def node(self, group: str) -> str:
        """Where a group runs."""
        return str(self.group_pod(group)["spec"]["nodeName"])

    def exec(self, group: str, *command: str, limit_s: float = 30.0) -> str:
        """In the container of its ranks."""
        name = self.group_pod(group)["metadata"]["name"]
        return kubectl("-n", "train", "exec", name, "--", *command, limit_s=limit_s, check=False)

    def rows(self) -> list[dict[str, Any]]:
        """The ranks' own status lines by time, with the pod that wrote them; commits are
        `step` events.
        """
        for path in self._status.glob("*.jsonl"):
            self._logs.setdefault(path.stem, StepLog(path))
        rows = [{**row, "pod": pod} for pod, log in self._logs.items() for row in log.read()]
        return sorted(rows, key=lambda row: row["time"])

    def together(self, steps: int = 20) -> bool:
        """Whether all ranks commit with all groups, for so many steps."""
        latest: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows()[-4000:]:
            if row["event"] == "step":
                latest.setdefault(row["rank"], []).append(row)
        if len(latest) < len(GROUPS) * RANKS:
            return False
        now_s = time.time()
        return all(
            len(mine) >= steps
            and now_s - mine[-1]["time"] < 2 + 2 * self.step_s
            and all(row["committed"] and row["participants"] == len(GROUPS)
                    for row in mine[-steps:])
            for mine in latest.values()
        )  # fmt: skip

    def ask(self, path: str) -> dict[str, Any]:
        """JSON of the monitor, from this machine. Raises LabError, requests.RequestException."""
        with contextlib.suppress(requests.RequestException):  # the API server may be away
            self._monitors = self.ready("lightkeeper", "lightkeeper")
        if not self._monitors:
            raise LabError("no monitor is Ready")
        url = f"http://{self._monitors[0]['status']['podIP']}:8470{path}"
        answer = self._http.get(url, timeout=5)
        answer.raise_for_status()
        return dict(answer.json())

    def healthy(self) -> bool:
        """Whether the monitor sees every rank healthy, and has nothing open."""
        ranks = self.ask("/v1/snapshot")["ranks"]
        return len(ranks) == len(GROUPS) * RANKS and all(
            row["health"] == "healthy" for row in ranks
        )


def without(text: str, deployment: str) -> str:
    """The kustomization without the patch of a Deployment."""
    parts = text.split("  - target: ")
    return "  - target: ".join(part for part in parts if f"name: {deployment}}}" not in part)


def only(text: str, deployment: str) -> str:
    """The patch of a Deployment alone."""
    parts = text.split("  - target: ")
    return "".join(f"  - target: {part}" for part in parts if f"name: {deployment}}}" in part)


def clear() -> None:
    """Nothing of a job is left: no pods, no volumes, no mark on a node."""
    names = [node["metadata"]["name"] for node in lab.Api().nodes()]
    for node in names:
        kubectl("uncordon", node)
        kubectl("label", "node", node, f"{MARK}-", check=False)
        kubectl("annotate", "node", node, f"{MARK}-", check=False)
        kubectl("taint", "node", node, f"{MARK}-", check=False)
    for namespace in ("train", "lightkeeper"):
        for kind in ("jobsets.jobset.x-k8s.io", "jobs.batch", "deployments.apps", "pods"):
            kubectl("-n", namespace, "delete", kind, "--all", "--force", "--grace-period=0",
                    "--wait=false", check=False)  # fmt: skip
    until("no pod is left", lambda: not any(map(lab.Api().pods, ("train", "lightkeeper"))), 90)
    until("no process of one is left", lambda: not any(map(_busy, NODES)), 90)
    for namespace in ("train", "lightkeeper"):
        kubectl("-n", namespace, "delete", "pvc,limitrange", "--all", "--wait=false", check=False)
    kubectl("delete", "pv", "--all", "--wait=false", check=False)
    until("no volume is left", lambda: not lab.Api().get("/api/v1/persistentvolumes")["items"], 60)
    for name in ("state", "checkpoints"):
        shutil.rmtree(lab.FOLDER / "volumes" / name, ignore_errors=True)


def _busy(node: str) -> bool:
    """Whether containers of the job are on it."""
    spaces = [f'labels."io.kubernetes.pod.namespace"=={name}' for name in ("train", "lightkeeper")]
    words = ("ctr", "-n", "k8s.io", "containers", "ls", "-q", *spaces)
    return bool(lab.call("docker", "exec", node, *words).split())
