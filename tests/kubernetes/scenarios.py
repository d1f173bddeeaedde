"""What is done to a job that trains, and what must come of it."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from experiments.harness import say
from tests.kubernetes import chart, lab, measures
from tests.kubernetes.job import CHECKPOINT_EVERY, GROUPS, Job
from tests.kubernetes.lab import LabError, kubectl, until

if TYPE_CHECKING:
    from tests.kubernetes.watch import Watch

VICTIM: Final = "rg_1"
ROLLOUTS: Final = 10
LOSSES: Final = 4
AWAY_S: Final = 60.0


@dataclass
class Stage:
    """One run: the job, who looks at it, and what was done when."""

    job: Job
    watch: Watch
    at_s: float = 0.0
    """Of the first act, in unix seconds."""
    acts: list[list[Any]] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    def act(self, text: str) -> None:
        """Said just before it is done."""
        now_s = time.time()
        self.at_s = self.at_s or now_s
        self.acts.append([round(now_s - self.at_s, 1), text])
        say(f"   {self.acts[-1][0]:6.1f} s  {text}")

    def kubectl(self, *words: str, limit_s: float = 150.0) -> None:
        """As a person types it, and told."""
        self.act(f"kubectl {' '.join(words)}")
        kubectl(*words, limit_s=limit_s)

    def until_back(
        self, limit_s: float, group: str = VICTIM, *, since_s: float | None = None
    ) -> bool:
        """Wait until the group has begun anew after the first act, or since then, and trains with
        all others.
        """
        from_s = self.at_s if since_s is None else since_s

        def trains() -> bool:
            rows = self.job.rows()
            return (measures.back(rows, from_s, len(GROUPS)).get(group) is not None
                    and self.job.together())  # fmt: skip

        try:
            return bool(until(f"{group} trains again", trains, limit_s))
        except LabError:
            return False


@dataclass(frozen=True)
class Scenario:
    """One row of the page."""

    name: str
    what: str
    play: Callable[[Stage], None]
    step_s: float = 0.1
    gate: bool = True
    settle_s: float = 20.0
    """Looked on after the last act, and after the groups train together again."""
    limit_s: float = 120.0
    """Waited for that at most."""
    jobset: int = 0
    """Nodes of a group, which is a JobSet; 0: a Job of one."""
    more: str = ""
    """Manifests beside the job's."""
    helm: bool = False
    """Monitor, gate and Lighthouse by the Helm chart."""
    # -- the targets
    lost: int = 0
    """Committed steps that may be made again."""
    gap_s: float | None = None
    """The longest time without a commit of the job, beyond a step."""
    ends: tuple[str, ...] = (VICTIM,)
    """Groups that may end."""
    back_s: float | None = None
    """It trains again so long after the first act."""
    says: str = ""
    """A pattern of the first sentence of an incident."""
    cordon: bool | None = None
    """Whether the victim's node is cordoned by us."""
    accuse: bool = False
    """Whether a group may be evicted, or a host quarantined."""


# -- the gate --------------------------------------------------------------------------------------

_GATE: Final = "deploy/lightkeeper-gate"


def rollouts(stage: Stage) -> None:
    for _ in range(ROLLOUTS):
        before = stage.job.pod("lightkeeper-gate")["metadata"]["name"]
        stage.kubectl("-n", "train", "rollout", "restart", _GATE)
        kubectl("-n", "train", "rollout", "status", _GATE, "--timeout=120s", limit_s=130)
        until(f"{before} is gone", lambda name=before: _gone(stage, name), 120)
        time.sleep(5)


def _gone(stage: Stage, name: str) -> bool:
    return all(pod["metadata"]["name"] != name for pod in stage.job.api.pods("train"))


def drain_gate(stage: Stage) -> None:
    node = stage.job.pod("lightkeeper-gate")["spec"]["nodeName"]
    _drain(stage, node)


def _drain(stage: Stage, node: str) -> None:
    stage.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=140s")
    stage.act("drained")


def delete_gate(stage: Stage) -> None:
    name = stage.job.pod("lightkeeper-gate")["metadata"]["name"]
    stage.kubectl("-n", "train", "delete", "pod", name, "--force", "--grace-period=0")


def kill_gate(stage: Stage) -> None:
    pod = stage.job.pod("lightkeeper-gate")
    stage.act("SIGKILL to the gate's container")
    lab.task(pod, "gate", "kill", "-s", "SIGKILL")


# -- a group ---------------------------------------------------------------------------------------


def drain_group(stage: Stage) -> None:
    _drain(stage, stage.job.node(VICTIM))


def delete_pod(stage: Stage) -> None:
    stage.kubectl("-n", "train", "delete", "pod", _victim(stage), "--wait=false")


def lose_again(stage: Stage) -> None:
    for number in range(1, LOSSES + 1):
        since_s = time.time()
        delete_pod(stage)
        stage.until_back(240, since_s=since_s)
        back = measures.back(stage.job.rows(), since_s, len(GROUPS)).get(VICTIM)
        stage.notes[f"back after loss {number}"] = "never" if back is None else f"{back} s"
        time.sleep(10)


def _victim(stage: Stage) -> str:
    return str(stage.job.group_pod(VICTIM)["metadata"]["name"])


_URGENT: Final = """\
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: urgent}
value: 10000
---
apiVersion: v1
kind: Pod
metadata: {name: urgent, namespace: default}
spec:
  priorityClassName: urgent
  terminationGracePeriodSeconds: 0
  nodeSelector: {kubernetes.io/hostname: NODE}
  containers:
    - {name: pause, image: "pause:1", resources: {requests: {cpu: 1200m}}}
"""


def preempt(stage: Stage) -> None:
    stage.act("a pod of a higher priority wants the node")
    kubectl("apply", "-f", "-", input=_URGENT.replace("NODE", stage.job.node(VICTIM)))
    stage.until_back(120)
    kubectl("-n", "default", "delete", "pod", "urgent", "--force", "--grace-period=0")


_HOGS: Final = """\
import os, signal, time
def ranks():
    count = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{pid}/cmdline").read().split(chr(0))
            count += "lightkeeper.trainer.train" in words and "torchrun" not in " ".join(words[:3])
        except OSError:
            pass
    return count
first, hogs = ranks(), []
while ranks() >= first and len(hogs) < 60:
    pid = os.fork()
    if not pid:
        full = b"x" * 80_000_000
        time.sleep(60)
        os._exit(0)
    hogs.append(pid)
    time.sleep(0.15)
for pid in hogs:
    os.kill(pid, signal.SIGKILL)
print(first, "ranks,", len(hogs), "processes of 80 MB")
"""


def out_of_memory(stage: Stage) -> None:
    stage.act("processes of 80 MB in the pod, until a rank is killed")
    stage.notes["hogs"] = stage.job.exec(VICTIM, "python3", "-c", _HOGS, limit_s=60).strip()


LIMIT: Final = """\
apiVersion: v1
kind: LimitRange
metadata: {name: disk, namespace: train}
spec:
  limits:
    - type: Container
      default: {ephemeral-storage: 300Mi}
      defaultRequest: {ephemeral-storage: 10Mi}
"""


def evict_by_kubelet(stage: Stage) -> None:
    stage.act("400 MB in the container's /tmp, of which the namespace allows 300")
    stage.job.exec(VICTIM, "dd", "if=/dev/zero", "of=/tmp/full", "bs=1M", "count=400")


_EATS: Final = """\
import os, time
if os.fork():
    os._exit(0)
full = []
while len(full) < 16:
    full.append(b"x" * 100_000_000)
    time.sleep(0.2)
time.sleep(60)
"""


def evict_for_memory(stage: Stage) -> None:
    node = stage.job.node(VICTIM)
    below = lab.available_memory(node) - 1_000_000_000
    with lab.evicting_below(node, below):
        stage.act("1.6 GB in the pod; its node evicts below 1 GB less than was free")
        stage.job.exec(VICTIM, "sh", "-c", f"python3 -c '{_EATS}' >/dev/null 2>&1")
        stage.until_back(90)


def stop_kubelet(stage: Stage) -> None:
    node = stage.job.node(VICTIM)
    stage.act(f"the kubelet of {node} is stopped")
    lab.signal_kubelet(node, "STOP")
    try:
        time.sleep(AWAY_S)
    finally:
        stage.act("and goes on")
        lab.signal_kubelet(node, "CONT")


def stop_api(stage: Stage) -> None:
    stage.act("the API server is stopped")
    lab.signal_api(signal.SIGSTOP)
    try:
        time.sleep(AWAY_S)
    finally:
        stage.act("and goes on")
        lab.signal_api(signal.SIGCONT)


# -- lost hosts ------------------------------------------------------------------------------------


def _away(stage: Stage, text: str, begin: Callable[[], None], end: Callable[[], None]) -> None:
    """Until the group is back, or for 150 s; then what of the old pod comes back."""
    old = _victim(stage)
    stage.act(text)
    begin()
    try:
        stage.notes["back before the end"] = stage.until_back(150)
        stage.notes["old pod"] = _state(stage, old)
    finally:
        ended_s = time.time()
        stage.act("the end of it")
        end()
    time.sleep(40)
    rows = stage.job.rows()
    stage.notes["commits of the old pod after the end"] = sum(
        row["pod"] == old and row["event"] == "step" and row["committed"] and row["time"] > ended_s
        for row in rows
    )
    stage.notes["old pod at the end"] = _state(stage, old)


def _state(stage: Stage, name: str) -> str:
    for pod in stage.job.api.pods("train"):
        if pod["metadata"]["name"] == name:
            ending = "Terminating " if "deletionTimestamp" in pod["metadata"] else ""
            return f"{ending}{pod['status']['phase']}"
    return "gone"


def freeze_node(stage: Stage) -> None:
    node = stage.job.node(VICTIM)
    _away(stage, f"{node} is frozen", lambda: lab.freeze(node), lambda: lab.thaw(node))


def cut_node(stage: Stage) -> None:
    node = stage.job.node(VICTIM)
    _away(stage, f"{node} is cut off", lambda: lab.cut(node), lambda: lab.join(node))


def freeze_pod(stage: Stage) -> None:
    pod = stage.job.group_pod(VICTIM)["metadata"]["name"]

    def to_all(name: str) -> None:
        kubectl("-n", "train", "exec", pod, "--", "sh", "-c", f"kill -{name} -1", check=False)

    _away(stage, "every process of the pod is stopped", lambda: to_all("STOP"),
          lambda: to_all("CONT"))  # fmt: skip


# -- the Lighthouse --------------------------------------------------------------------------------


def delete_lighthouse(stage: Stage) -> None:
    name = stage.job.pod("lighthouse")["metadata"]["name"]
    stage.kubectl("-n", "train", "delete", "pod", name, "--force", "--grace-period=0")


def pause_lighthouse_node(stage: Stage) -> None:
    node = stage.job.pod("lighthouse")["spec"]["nodeName"]
    stage.act(f"docker pause {node} (kubelet and containerd)")
    lab.call("docker", "pause", node)
    try:
        time.sleep(AWAY_S)
    finally:
        stage.act("docker unpause")
        lab.call("docker", "unpause", node)


# -- the chart -------------------------------------------------------------------------------------


_POLICY: Final = "[guards]\nbudget_per_hour = 3\n"


def upgrade_chart(stage: Stage) -> None:
    stage.notes["objects that the API server takes as they are"] = chart.taken()
    memory = {"requests": {"cpu": "200m", "memory": "300Mi"}}
    for what, changed in (
        ("of the monitor: a policy", {"monitor": {"policy": _POLICY}}),
        ("of the gate: its memory", {"gate": {"resources": memory}}),
    ):
        stage.act(f"helm upgrade {what}")
        stage.job.upgrade(**changed)
        _rolled_out(stage)
    stage.act("helm rollback to the first")
    chart.call("rollback", chart.RELEASE, "1", "--namespace", chart.RELEASE)
    _rolled_out(stage)
    stage.notes["pods of the Lighthouse"] = chart.lighthouses()


def _rolled_out(stage: Stage) -> None:
    for namespace, name in (("lightkeeper", "deploy/lightkeeper"), ("train", _GATE)):
        kubectl("-n", namespace, "rollout", "status", name, "--timeout=120s", limit_s=130)
    until("the gate is one", lambda: len(stage.job.ready("train", "lightkeeper-gate")) == 1, 120)
    time.sleep(5)


# -- all -------------------------------------------------------------------------------------------

_LOST: Final = {"back_s": 90.0, "cordon": True, "accuse": True, "limit_s": 60.0}
_CALM: Final = {"gap_s": 10.0, "back_s": 90.0}

SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (
        Scenario("rollout", f"`rollout restart` of the gate, {ROLLOUTS} times", rollouts,
                 gap_s=2.0, ends=()),
        Scenario("rollout-2s", f"the same, {ROLLOUTS} times, steps of 2 s", rollouts, step_s=2.0,
                 gap_s=2.0, ends=()),
        Scenario("drain-gate", "`drain` of the node of gate, Lighthouse and monitor", drain_gate,
                 gap_s=2.0, ends=()),
        Scenario("drain-gate-2s", "the same, steps of 2 s", drain_gate, step_s=2.0, gap_s=2.0,
                 ends=()),
        Scenario("delete-gate", "`delete pod --force` of the gate", delete_gate, gap_s=10.0,
                 ends=()),
        Scenario("delete-gate-2s", "the same, steps of 2 s", delete_gate, step_s=2.0, gap_s=10.0,
                 ends=()),
        Scenario("kill-gate", "SIGKILL of the gate's container", kill_gate, gap_s=10.0, ends=()),
        Scenario("kill-gate-2s", "the same, steps of 2 s", kill_gate, step_s=2.0, gap_s=10.0,
                 ends=()),
        Scenario("drain-group", "`drain` of a group's node", drain_group,
                 says="drain|evicted|EvictionByEvictionAPI", **_CALM),
        Scenario("delete-pod", "`delete pod` of a group", delete_pod, says="delet", **_CALM),
        Scenario("preempt", "a pod of a higher priority takes its place", preempt, says="preempt",
                 **_CALM),
        Scenario("oom", "out of memory in the pod's cgroup", out_of_memory,
                 says="OOM|memory", **_CALM),
        Scenario("evict-kubelet", "the kubelet evicts the pod (its disk)", evict_by_kubelet,
                 says="evict|kubelet|TerminationByKubelet", more=LIMIT, **_CALM),
        Scenario("evict-pressure", "the kubelet evicts the pod (its node's memory)",
                 evict_for_memory, says="was evicted by the kubelet", **_CALM),
        Scenario("stop-kubelet", f"a group's kubelet away for {AWAY_S:.0f} s", stop_kubelet,
                 gap_s=2.0, ends=()),
        Scenario("stop-api", f"the API server away for {AWAY_S:.0f} s", stop_api, gap_s=2.0,
                 ends=()),
        Scenario("freeze-node", "a group's node frozen", freeze_node, **_LOST),
        Scenario("cut-node", "a group's node cut off", cut_node, **_LOST),
        Scenario("freeze-pod", "a group's pod frozen (SIGSTOP to all of it)", freeze_pod, **_LOST),
        Scenario("freeze-node-plain", "a group's node frozen, no gate, no --kube-force",
                 freeze_node, gate=False, limit_s=90.0, accuse=True),
        Scenario("delete-lighthouse", "`delete pod --force` of the Lighthouse", delete_lighthouse,
                 gap_s=10.0, ends=()),
        Scenario("delete-lighthouse-plain", "the same without a gate: all end by their quorum "
                 "timeout and begin again from the last checkpoint", delete_lighthouse, gate=False,
                 lost=CHECKPOINT_EVERY, ends=GROUPS),
        Scenario("pause-lighthouse-node",
                 f"kubelet and containerd of the Lighthouse's node away for {AWAY_S:.0f} s",
                 pause_lighthouse_node, gap_s=2.0, ends=()),
        Scenario("jobset-delete-pod", "groups of two nodes by JobSet: `delete pod` of one",
                 delete_pod, jobset=2, says="delet", **_CALM),
        Scenario("helm-install", "the Helm chart in kustomize's place: two upgrades, a rollback",
                 upgrade_chart, helm=True, gap_s=2.0, ends=()),
        Scenario("lose-again", f"`delete pod` of a group, {LOSSES} times", lose_again, gap_s=10.0),
        Scenario("jobset-lose-again", "the same, each group a JobSet of one node", lose_again,
                 jobset=1, gap_s=10.0),
    )
}  # fmt: skip


def judge(record: dict[str, Any], scenario: Scenario) -> list[str]:
    """Targets that were missed, each in a few words; empty: none. Pure."""
    missed = []
    if record["lost"] > scenario.lost:
        missed.append(f"{record['lost']} steps lost")
    beyond = record["gaps"]["job"] - (record["pace"] or 0.0)
    if scenario.gap_s is not None and beyond > scenario.gap_s:
        missed.append(f"no commit for {beyond:.1f} s beyond a step, not {scenario.gap_s:.0f}")
    ended = [group for group in record["starts"] if group not in scenario.ends]
    if ended:
        missed.append(f"{', '.join(ended)} ended")
    if scenario.back_s is not None and scenario.ends:
        missed += _late(record, scenario.back_s)
    return missed + _words(record, scenario)


def _late(record: dict[str, Any], limit_s: float) -> list[str]:
    at_s = record["back"].get(VICTIM)
    if at_s is None:
        return [f"{VICTIM} does not train again"]
    return [f"{VICTIM} trains again after {at_s} s, not {limit_s:.0f}"] if at_s > limit_s else []


def _words(record: dict[str, Any], scenario: Scenario) -> list[str]:
    missed = []
    sentences = [row[1] for row in map(measures.said, record["incidents"]) if row]
    if scenario.says and not any(re.search(scenario.says, text) for text in sentences):
        missed.append(f"no first sentence has `{scenario.says}`")
    if not scenario.accuse:
        evicted = [group for row in record["incidents"] for group in row["evicted"]]
        missed += [f"evicted: {group}" for group in evicted]
        missed += [f"in quarantine: {host}" for host in record["quarantined"]]
    if scenario.cordon is not None and record["cordoned"] != scenario.cordon:
        missed.append("its node is not cordoned" if scenario.cordon else "its node is cordoned")
    return missed
