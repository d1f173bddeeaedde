"""What nodes of Kubernetes and lines of sinfo testify, by the shipped table."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from lightkeeper.monitor.act.schedulers.kubernetes import KEY, kube_facts
from lightkeeper.monitor.act.schedulers.slurm import node_said
from lightkeeper.monitor.act.testimonies import QUERIES, UNKNOWN_S, read_fact
from lightkeeper.monitor.model.queries import PrometheusQuery
from lightkeeper.worker_server.wire import Weight
from tests.monitor.act.fake_prometheus import shipped

BEFORE = "2026-11-29T23:53:20Z"
NOW_S = datetime.fromisoformat(BEFORE).timestamp() + 400.0
UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def condition(kind, status="True", reason="Because", message="why"):
    return {"type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": BEFORE}  # fmt: skip


def node(*conditions, taints=(), labels=None, cordoned=False, **annotations):
    return {
        "metadata": {"labels": labels or {}, "annotations": annotations},
        "spec": {"taints": list(taints), "unschedulable": cordoned},
        "status": {"conditions": list(conditions)},
    }


def taint(key):
    return node(taints=[{"key": key, "effect": "NoSchedule"}])


def sichek(said):
    return {"scitix.ai/sichek": json.dumps(said)}


def read(kind, body):
    said = (read_fact("Kubernetes", *fact) for fact in kube_facts(kind, body, NOW_S))
    return [(each.weight, each.code, each.text) for each in said if each is not None]


B, L, S, C = Weight.BROKEN, Weight.LEAVING, Weight.SLOW, Weight.CONTEXT
HYPERPOD = "sagemaker.amazonaws.com/"
GKE = "cloud.google.com/scheduled-maintenance-time"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (node(condition("Ready")), []),
        (node(condition("Ready", "False")), [(C, "not-ready", "the node is not ready: why")]),
        (node(condition("Ready", "Unknown", message="")),
         [(C, "not-ready", "the node is not ready: Because")]),
        (node(condition("MemoryPressure")), [(S, "pressure", "Memory pressure: why")]),
        (node(condition("DiskPressure", "False"), condition("PIDPressure", "Unknown")), []),
        (node(condition("PIDPressure")), [(S, "pressure", "PID pressure: why")]),
        (node(condition("NetworkUnavailable")),
         [(S, "network-unavailable", "the network is not set up: why")]),
        (node(condition("KernelDeadlock", message="task docker:7 blocked")),
         [(B, "kernel-deadlock", "the kernel is deadlocked: task docker:7 blocked")]),
        (node(condition("ReadonlyFilesystem")),
         [(B, "filesystem-read-only", "a file system is read-only: why")]),
        (node(condition("XfsShutdown")), [(B, "filesystem-down", "XFS has shut down: why")]),
        (node(condition("CperHardwareErrorFatal")),
         [(B, "hardware-error", "the firmware reports a fatal hardware error: why")]),
        (node(condition("FrequentKubeletRestart")),
         [(C, "node-problem", "FrequentKubeletRestart: why")]),
        (node(condition("GpuMemWatch", message="[DCGM_FR_ROW_REMAP_FAILURE] GPU:3 RESTART_BM")),
         [(B, "nvsentinel",
           "NVSentinel, GpuMemWatch: [DCGM_FR_ROW_REMAP_FAILURE] GPU:3 RESTART_BM")]),
        (node(condition("GpuMemWatch", "False"), condition("SysLogsXIDError", "False")), []),
        (node(condition("SysLogsXIDError", message="[79] GPU:3")),
         [(B, "nvsentinel", "NVSentinel, SysLogsXIDError: [79] GPU:3")]),
        (node(condition("NVSwitchNonFatalError")),
         [(C, "nvsentinel", "NVSentinel, NVSwitch: why")]),
        (node(condition("CSPMaintenance")), [(L, "maintenance", "maintenance by the cloud: why")]),
        (node(condition("AcceleratedHardwareReady", "False")),
         [(B, "eks-not-ready", "EKS, AcceleratedHardware is not ready: why")]),
        (node(condition("AcceleratedHardwareReady"), condition("KernelReady")), []),
        (node(condition("PreemptScheduled")),
         [(L, "maintenance", "the cloud has scheduled: Preempt; why")]),
        (node(condition("SomebodysOwn")), []),
        (taint("ToBeDeletedByClusterAutoscaler"),
         [(L, "scale-down", "the autoscaler removes the node")]),
        (taint("DeletionCandidateOfClusterAutoscaler"),
         [(L, "scale-down", "the autoscaler removes the node")]),
        (taint("karpenter.sh/disrupted"), [(L, "scale-down", "Karpenter removes the node")]),
        (taint("karpenter.sh/disruption"), [(L, "scale-down", "Karpenter removes the node")]),
        (taint("aws-node-termination-handler/spot-itn"),
         [(L, "preemption", "AWS takes the machine back: spot-itn")]),
        (taint("node.kubernetes.io/out-of-service"),
         [(L, "out-of-service", "the node is out of service")]),
        (taint("nvidia.com/gpu"), []),
        (node(taints=[UNSCHEDULABLE], cordoned=True),
         [(L, "cordoned", "somebody has cordoned the node")]),
        (node(taints=[UNSCHEDULABLE, {"key": KEY}], cordoned=True,
              **{KEY: json.dumps({"cordoned": True, "by": {"a1b2c3": {}}})}), []),
        (node(taints=[UNSCHEDULABLE, {"key": KEY}], cordoned=True,
              **{KEY: json.dumps({"cordoned": False, "by": {"a1b2c3": {}}})}),
         [(L, "cordoned", "somebody has cordoned the node")]),
        (node(labels={f"{HYPERPOD}node-health-status": "Schedulable"}), []),
        (node(labels={f"{HYPERPOD}node-health-status": "UnschedulablePendingReboot"}),
         [(B, "hyperpod", "HyperPod: the node waits for its Reboot")]),
        (node(labels={f"{HYPERPOD}node-health-status": "Unschedulable"}),
         [(L, "hyperpod", "HyperPod: nothing new starts on the node")]),
        (node(labels={f"{HYPERPOD}deep-health-check-status": "Failed"}),
         [(B, "hyperpod-check", "HyperPod: the deep health check failed")]),
        (node(labels={GKE: str(int(NOW_S) + 600)}),
         [(L, "maintenance", "maintenance by the cloud at 2026-11-30 00:10:00 UTC")]),
        (node(labels={GKE: str(int(NOW_S) + 90_000)}),
         [(C, "maintenance", "maintenance by the cloud at 2026-12-01 01:00:00 UTC")]),
        (node(labels={GKE: "9" * 400}), []),
        (node(**sichek({"nvidia": {"fatal": [{"error_name": "GPULost", "device": "3"}]}})),
         [(B, "sichek", "sichek: nvidia, GPULost 3")]),
        (node(**sichek({"nccl": {"fatal": [{"error_name": "Timeout"}]},
                        "hang": {"fatal": [{"error_name": "GPUHang"}]}})), []),
        (node(**sichek({"cpu": {"warning": [{"error_name": "Performance"}], "info": []}})),
         [(C, "sichek", "sichek: cpu, Performance")]),
        (node(**sichek("x")), []),
        (node(**{"scitix.ai/sichek": "[" * 100_000}), []),
        (node(**sichek({"cpu": {"fatal": [7]}})), []),
        ({}, []),
    ],
)  # fmt: skip
def test_a_node_testifies(body, expected):
    assert read("node", body) == expected


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("PreemptionByScheduler", [(L, "preemption", "a pod is preempted: why")]),
        ("TerminationByKubelet", [(L, "eviction", "the kubelet ends a pod: why")]),
        ("EvictionByEvictionAPI", [(L, "eviction", "a pod is ended: EvictionByEvictionAPI, why")]),
        ("DeletionByTaintManager",
         [(L, "eviction", "a pod is ended: DeletionByTaintManager, why")]),
    ],
)  # fmt: skip
def test_a_pod_testifies(reason, expected):
    body = node(condition("DisruptionTarget", reason=reason), condition("Ready", "False"))
    assert read("pod", body) == expected
    assert read("pod", node(condition("DisruptionTarget", "False", reason))) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("n1|idle|Unknown|none", []),
        ("n1|mixed|Unknown|none", []),
        ("n1|completing*|Unknown|none", []),
        ("n1|draining|T|bad DIMM, ticket 7",
         [(L, "drained", "the node is drained: bad DIMM, ticket 7")]),
        ("n1|drained*|T|lightkeeper[a1b2c3]: incident x: hang", []),
        ("n1|drained|T|lightkeeper[other]: hang", []),
        ("n1|drained|T|Kill task failed", [(C, "slurm-reason", "Slurm: Kill task failed")]),
        ("n1|down|T|Node unexpectedly rebooted",
         [(B, "rebooted", "the machine rebooted by itself")]),
        ("n1|down*|T|Not responding", [(C, "slurm-reason", "Slurm: Not responding")]),
        ("n1|drained|T|Low RealMemory (reported:1 < 100.00% of configured:2)",
         [(B, "health-check", "Low RealMemory (reported:1 < 100.00% of configured:2)")]),
        ("n1|drained|T|NHC: check_hw_ib: no port",
         [(B, "health-check", "NHC: check_hw_ib: no port")]),
        ("n1|inval|T|gres/gpu count reported lower than configured (7 < 8)",
         [(B, "health-check", "gres/gpu count reported lower than configured (7 < 8)")]),
        # as slurmctld 22.05 writes them
        ("n1|fail|T|disk", [(B, "failing", "the node is expected to fail: disk")]),
        ("n1|reboot|T|Reboot ASAP", [(L, "reboot", "the node is to be rebooted: Reboot ASAP")]),
        ("n1|unknown|Unknown|none", []),
        ("n1|failing|T|disk", [(B, "failing", "the node is expected to fail: disk")]),
        ("n1|maint|Unknown|none", [(L, "maintenance", "the node is under maintenance")]),
        ("n1|allocated$|Unknown|none", [(L, "maintenance", "the node is under maintenance")]),
        ("n1|reboot^|T|Reboot ASAP", [(L, "reboot", "the node is to be rebooted: Reboot ASAP")]),
        ("n1|powering_down|Unknown|none", [(L, "down", "the node is taken down")]),
        ("n1|down|T|bob: moved", [(L, "down", "the node is taken down: bob: moved")]),
        ("n1", []),
        ("", []),
    ],
)  # fmt: skip
def test_a_line_of_sinfo_testifies(line, expected):
    said = list(node_said(line.replace("|T|", "|2026-11-22T02:14:39|"), NOW_S))
    assert [(each.weight, each.code, each.text) for _, each in said] == expected
    assert all(names == ("n1",) for names, _ in said)
    assert all((each.for_s == UNKNOWN_S) is ("2026" not in line and "|T|" not in line)
               for _, each in said)  # fmt: skip


def test_what_a_cluster_says_is_cut_to_the_bounds_of_the_wire():
    body = node(condition("GpuMemWatch", message="\x1b[31m" + "a\n" * 5000))
    (said,) = (r for f in kube_facts("node", body, NOW_S) if (r := read_fact("Kubernetes", *f)))
    assert len(said.text) == 200
    assert said.text.isprintable()
    assert said.for_s == pytest.approx(400.0)


def test_every_shipped_row_can_be_used():
    assert len(QUERIES) == len(shipped())
    assert all(isinstance(row, PrometheusQuery) and row.query for row in QUERIES)
