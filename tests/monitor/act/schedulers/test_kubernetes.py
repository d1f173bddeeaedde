"""Kubernetes' driver against an API server that behaves as documented."""

from __future__ import annotations

import builtins
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from lightkeeper.monitor.act.schedulers import kubernetes
from lightkeeper.monitor.act.schedulers.base import Lost, NotDone
from lightkeeper.monitor.act.schedulers.kubernetes import (
    KEY,
    KubeOptions,
    KubeUnusableError,
    _unreached,
    configured,
)
from lightkeeper.monitor.model.names import GroupName, Host
from tests.monitor.act.schedulers.conformance import (
    INCIDENT,
    NODE,
    OTHER,
    RG_1,
    SOON_S,
    WHY,
    Conformance,
    place_of,
)
from tests.monitor.act.schedulers.kube_world import NAMESPACE
from tests.waiting import wait_for

pytestmark = pytest.mark.integration  # servers on loopback, real deadlines


class TestConformance(Conformance):
    @pytest.fixture
    def world(self, kube_world):
        return kube_world


def cordon(world, host=NODE):
    return world.scheduler.cordon(host, WHY, SOON_S)


def uncordon(world, host=NODE):
    return world.scheduler.uncordon(host, "released", SOON_S)


def remove(world, *places, group=RG_1, timeout_s=SOON_S, scheduler=None):
    return (scheduler or world.scheduler).remove(group, places, WHY, timeout_s)


def without(place, label):
    return place_of(
        place.rank, place.host, {key: value for key, value in place.labels.items() if key != label}
    )


# -- nodes -------------------------------------------------------------------------------------


def test_the_annotation_tells_incident_reason_and_since_when(kube_world):
    assert cordon(kube_world).detail == "node1 cordoned and tainted"
    node = kube_world.kube.nodes[NODE]
    said = json.loads(node["metadata"]["annotations"][KEY])
    since = said["by"]["a1b2c3"].pop("since")
    assert since.endswith("Z")
    assert said == {
        "cordoned": True,
        "by": {
            "a1b2c3": {"incident": INCIDENT, "reason": "rg_1.0 stands still in data; 3 others wait"}
        },
    }
    assert node["spec"] == {
        "unschedulable": True,
        "taints": [{"key": KEY, "value": "true", "effect": "NoSchedule"}],
    }
    assert node["metadata"]["labels"][KEY] == "true"


def test_a_release_leaves_the_node_as_it_was(kube_world):
    taint = {"key": "gpu", "effect": "NoSchedule"}
    kube_world.kube.by_hand(NODE, {"taints": [taint], "podCIDR": "10.0.0.0/24"}, other="kept")
    cordon(kube_world)
    assert uncordon(kube_world).detail == "node1 uncordoned and untainted"
    node = kube_world.kube.nodes[NODE]
    assert node["spec"] == {"unschedulable": False, "taints": [taint], "podCIDR": "10.0.0.0/24"}
    assert node["metadata"]["annotations"] == {"other": "kept"}
    assert KEY not in node["metadata"]["labels"]


def test_a_node_that_somebody_had_cordoned_stays_cordoned_after_the_release(kube_world):
    kube_world.kube.by_hand(NODE, {"unschedulable": True})
    assert cordon(kube_world).detail == "node1 tainted (it was cordoned before)"
    said = uncordon(kube_world)
    assert said.detail == "node1 untainted; it was cordoned before us and stays so"
    assert (said.done, said.ours) == (True, False)
    assert kube_world.kube.nodes[NODE]["spec"] == {"unschedulable": True, "taints": []}


def test_a_change_by_somebody_else_in_between_is_kept_and_ours_is_computed_again(kube_world):
    taint = {"key": "late", "effect": "NoSchedule"}
    kube = kube_world.kube
    kube.before_patch = [lambda: kube.by_hand(NODE, {"taints": [taint]})]
    assert cordon(kube_world).done
    keys = [condition["key"] for condition in kube.nodes[NODE]["spec"]["taints"]]
    assert keys == ["late", KEY]


@pytest.mark.parametrize(
    ("status", "passes"),
    [*((status, True) for status in (409, 410, 429, 500, 503)), (401, False), (403, False),
     (422, False)],
)  # fmt: skip
def test_what_may_pass_is_tried_again_and_what_will_not_is_said_at_once(kube_world, status, passes):
    kube_world.kube.answers = [(status, "no, and\nhere is why")] * 2
    said = cordon(kube_world)
    assert said.done is passes
    if not passes:
        expected = f"not cordoned: the API server answers {status}: no, and here is why"
        assert said.detail == f"node1 {expected}"
        assert len(kube_world.kube.requests) == 1


@pytest.mark.parametrize("annotation", ["", "no json", "[]", '{"by": 3}', "[" * 10_000])
def test_an_annotation_that_cannot_be_read_gives_nobodys_cordon_away(kube_world, annotation):
    kube_world.kube.by_hand(NODE, {"unschedulable": True}, **{KEY: annotation})
    assert uncordon(kube_world).done
    assert not kube_world.admits(NODE)
    assert cordon(kube_world).done
    uncordon(kube_world)
    assert not kube_world.admits(NODE)


# -- NVSentinel --------------------------------------------------------------------------------

EVENTS = json.dumps([{"checkName": "GpuXidError", "isFatal": True}])


def sentinel_takes(world, host=NODE):
    world.kube.by_hand(
        host, {"unschedulable": True}, quarantineHealthEvent=EVENTS,
        quarantineHealthEventIsCordoned="True",
    )  # fmt: skip
    world.kube.nodes[host]["metadata"]["labels"]["k8saas.nvidia.com/cordon-by"] = "NVSentinel"


def sentinel_lets_go(world, host=NODE):
    meta = world.kube.nodes[host]["metadata"]
    for key in [key for key in meta["annotations"] if key.startswith("quarantine")]:
        del meta["annotations"][key]
    del meta["labels"]["k8saas.nvidia.com/cordon-by"]
    world.kube.touch(world.kube.nodes[host])


def test_a_node_that_nvsentinel_holds_is_tainted_and_its_cordon_never_taken_back(kube_world):
    sentinel_takes(kube_world)
    said = "node1 tainted (it was cordoned before); NVSentinel holds it"
    assert cordon(kube_world).detail == said
    assert uncordon(kube_world).done
    node = kube_world.kube.nodes[NODE]
    assert node["spec"]["unschedulable"] is True
    assert node["metadata"]["annotations"]["quarantineHealthEvent"] == EVENTS


def test_a_cordon_of_ours_waits_for_nvsentinel_which_would_take_the_uncordon_for_a_cancel(
    kube_world,
):
    cordon(kube_world)
    sentinel_takes(kube_world)
    said = uncordon(kube_world)
    assert not said.done  # so it is asked again
    assert "stays cordoned for now: NVSentinel holds it" in said.detail
    sentinel_lets_go(kube_world)
    assert uncordon(kube_world).done
    assert kube_world.admits(NODE)


# -- Primus-SaFE -------------------------------------------------------------------------------


@pytest.fixture
def primus(kube_world):
    return kube_world.made(options=KubeOptions(primus_safe="901"))


def conditions(world, host=NODE):
    listed = world.kube.nodes[host]["status"]["conditions"]
    return {condition["type"]: condition["status"] for condition in listed}


def test_primus_safe_is_told_by_a_condition_and_others_conditions_stay(kube_world, primus):
    assert primus.cordon(NODE, WHY, SOON_S).done
    assert conditions(kube_world) == {"Ready": "True", "primus-safe.901": "True"}
    made = kube_world.kube.nodes[NODE]["status"]["conditions"][-1]
    assert made["message"].startswith(f"lightkeeper[a1b2c3]: incident {INCIDENT}: rg_1.0 stands")
    assert primus.cordon(NODE, WHY, SOON_S).done
    patches = [
        request for request in kube_world.kube.requests if request.resource == "nodes/status"
    ]
    assert len(patches) == 1
    assert primus.uncordon(NODE, "released", SOON_S).done
    assert conditions(kube_world)["primus-safe.901"] == "False"


def test_without_primus_safe_no_status_is_touched(kube_world):
    cordon(kube_world)
    assert {request.resource for request in kube_world.kube.requests} == {"nodes"}


def labelled_pod(world, number, host, group="1"):
    """A pod of a workload of Primus-SaFE; its rank's place."""
    labels = {"primus-safe.workload.id": "w1", "primus-safe.workload.group.id": group}
    uid = world.kube.add_pod(NAMESPACE, f"w1-{number}", host, **labels)
    labels_of_pod = {"pod": f"w1-{number}", "namespace": NAMESPACE, "pod_uid": uid, "node": host}
    return place_of(f"rg_{number}.0", host, labels_of_pod)


def test_in_primus_safe_all_pods_of_the_replica_group_go_also_those_that_told_nothing(
    kube_world, primus
):
    place = labelled_pod(kube_world, 1, NODE)
    kube_world.places.append(place)
    labelled_pod(kube_world, 2, OTHER)
    labelled_pod(kube_world, 3, OTHER, group="2")
    assert remove(kube_world, place, scheduler=primus).done
    assert [name for _, name in kube_world.kube.pods] == ["w1-3"]


def test_in_primus_safe_a_group_whose_label_takes_in_another_group_is_left_alone(
    kube_world, primus
):
    kube_world.places += [labelled_pod(kube_world, number, NODE) for number in range(2)]
    said = remove(kube_world, kube_world.places[1], scheduler=primus)
    assert not said.done
    assert "carries rg_0.0 too" in said.detail
    assert len(kube_world.kube.pods) == 2


# -- pods --------------------------------------------------------------------------------------


def test_a_pod_is_deleted_with_its_uid_as_precondition_and_a_short_grace(kube_world):
    place = kube_world.start("rg_1.0", NODE)
    assert remove(kube_world, place).detail == "deleted pod train/job-worker-0"
    (deleted,) = [request for request in kube_world.kube.requests if request.verb == "delete"]
    assert deleted.body["preconditions"] == {"uid": place.labels["pod_uid"]}
    assert deleted.body["gracePeriodSeconds"] == 5


def test_a_pod_replaced_between_the_look_and_the_deletion_is_not_hit(kube_world, monkeypatch):
    old = kube_world.start("rg_1.0", NODE)
    delete = kube_world.kube._delete

    def replaced(namespace, name, body):
        monkeypatch.setattr(kube_world.kube, "_delete", delete)
        kube_world.renew(old)
        return delete(namespace, name, body)

    monkeypatch.setattr(kube_world.kube, "_delete", replaced)
    assert remove(kube_world, old).done
    assert len(kube_world.kube.pods) == 1


def test_a_pod_with_the_nodes_network_is_found_by_its_uid(kube_world):
    place = kube_world.start("rg_1.0", NODE)
    kube_world.start("rg_0.0", NODE)
    assert remove(kube_world, without(place, "pod")).done
    assert not kube_world.runs(place)
    assert len(kube_world.kube.pods) == 1


def test_a_pod_without_a_uid_is_refused_and_says_what_to_set(kube_world):
    place = kube_world.start("rg_1.0", NODE)
    assert remove(kube_world, without(place, "pod_uid")).detail == (
        "rg_1 not removed: rg_1.0 does not tell the uid of its pod (POD_UID, POD_NAMESPACE)"
    )


def test_an_old_rank_of_another_group_on_the_same_host_may_be_in_the_pod(kube_world):
    place = kube_world.start("rg_1.0", NODE)
    kube_world.places.append(place_of("rg_0.0", NODE, {}))
    said = remove(kube_world, place)
    assert "rg_0.0 does not tell its place" in said.detail
    assert kube_world.runs(place)
    kube_world.places[-1] = place_of("rg_0.0", OTHER, {})
    assert remove(kube_world, place).done


def test_a_pod_that_stays_terminating_is_told_at_the_deadline(kube_world):
    place = kube_world.start("rg_1.0", NODE)
    kube_world.kube.lingering = True
    said = remove(kube_world, place, timeout_s=0.6)
    assert not said.done
    assert said.detail.endswith("pod train/job-worker-0 terminating still")


def test_force_deletes_at_once_on_a_node_that_is_not_ready_and_nowhere_else(kube_world):
    kube = kube_world.kube
    kube.lingering = True
    forcing = kube_world.made(options=KubeOptions(force=True))
    kube.add_node("lost", ready=False)
    there, here = kube_world.start("rg_1.0", "lost"), kube_world.start("rg_2.0", NODE)
    said = remove(kube_world, there, scheduler=forcing)
    assert said.done
    assert "by force: processes may live on" in said.detail
    assert not remove(
        kube_world, here, group=GroupName("rg_2"), timeout_s=0.6, scheduler=forcing
    ).done


# -- groups out of sight -------------------------------------------------------------------------


class Away:
    """What the evictor tells a driver of a group that nobody sees, and hears from it."""

    def __init__(self, fenced=True):
        self.refused = fenced
        self.down = []
        self.lost = Lost(lambda: self.refused, self.down.append)


@pytest.fixture
def away(kube_world):
    """Its kubelet does not answer, and its Job makes no pod before this one has failed."""
    kube = kube_world.kube
    kube.lingering = kube.of_a_job = True
    kube.add_node("lost", ready=False)
    return Away()


def end(world, place, away, timeout_s=SOON_S, scheduler=None):
    scheduler = scheduler or world.scheduler
    return scheduler.remove(RG_1, [place], replace(WHY, lost=away.lost), timeout_s)


def graces(world):
    deletions = [request for request in world.kube.requests if request.verb == "delete"]
    return [request.body["gracePeriodSeconds"] for request in deletions]


def test_a_fenced_pod_of_a_lost_node_is_failed_and_deleted_by_force(kube_world, away):
    place = kube_world.start("rg_1.0", "lost")
    said = end(kube_world, place, away)
    assert said.done, said
    assert said.detail.startswith("deleted pod train/job-worker-0 by force")
    assert not kube_world.runs(place)
    assert set(away.down) == {"lost"}
    assert graces(kube_world) == [5, 0]
    (patch,) = [each for each in kube_world.kube.requests if each.verb == "patch"]
    assert patch.body["status"]["phase"] == "Failed"
    assert patch.body["status"]["conditions"][0]["type"] == "DisruptionTarget"


def test_without_a_fence_nothing_is_forced_and_a_person_reads_what_to_do(kube_world, away):
    away.refused, place = False, kube_world.start("rg_1.0", "lost")
    said = end(kube_world, place, away, timeout_s=0.8)
    assert not said.done
    assert kube_world.runs(place)
    assert graces(kube_world) == [5]
    assert not [each for each in kube_world.kube.requests if each.verb == "patch"]
    assert set(away.down) == {"lost"}  # quarantined all the same
    assert said.detail.endswith(
        "no kubelet answers on lost, and no gate refuses the group (or --kube-force). Once lost is "
        "known to be off: kubectl -n train patch pod job-worker-0 --subresource=status "
        """-p '{"status":{"phase":"Failed"}}' && kubectl -n train delete pod job-worker-0 --force"""
    )


def test_the_option_forces_without_a_fence(kube_world, away):
    away.refused, place = False, kube_world.start("rg_1.0", "lost")
    forcing = kube_world.made(options=KubeOptions(force=True))
    assert end(kube_world, place, away, scheduler=forcing).done


def test_a_fence_or_a_node_that_is_lost_later_is_waited_for(kube_world, away):
    kube, place = kube_world.kube, kube_world.start("rg_1.0", "lost")
    kube.set_ready("lost", "True")
    looks = iter(range(1000))

    def fenced():
        return next(looks) > 1

    def seen(host):
        away.down.append(host)

    def allow(verb, resource, namespace):
        if (verb, resource) == ("delete", "pods"):  # the first, which no kubelet follows
            kube.set_ready("lost", "Unknown")
        return True

    kube.allow, away.lost = allow, Lost(fenced, seen)
    assert end(kube_world, place, away).done
    assert graces(kube_world) == [5, 0]


@pytest.mark.parametrize("ready", ["True", "False"])
def test_where_a_kubelet_answers_nothing_is_forced(kube_world, away, ready):
    place = kube_world.start("rg_1.0", "lost")
    kube_world.kube.set_ready("lost", ready)
    said = end(kube_world, place, away, timeout_s=0.6)
    assert (said.done, away.down, graces(kube_world)) == (False, ["lost"], [5])
    kube_world.kube.lingering = kube_world.kube.of_a_job = False  # the kubelet ends the frozen pod
    said = end(kube_world, place, away)
    assert (said.done, said.detail) == (True, "deleted pod train/job-worker-0")
    assert set(away.down) == {"lost"}  # nothing that runs in a pod freezes all of it


def test_a_kubelet_that_renews_no_lease_is_lost_before_its_node_is(kube_world, away, monkeypatch):
    monkeypatch.setattr(kubernetes, "_UNRENEWED_S", 0.3)
    kube, place = kube_world.kube, kube_world.start("rg_1.0", "lost")
    kube.set_ready("lost", "True")
    kube.leases["lost"] = "2026-11-22T02:14:39.000000Z"  # its own clock, which may be wrong
    codes = []

    def look():
        codes.append([said.code for _, said in kube_world.scheduler.ends([place], SOON_S)])
        return codes[-1] == ["node-lost"]

    wait_for(look, within_s=20, what="a lost kubelet")
    assert codes[0] == ["runs"]
    kube.leases["lost"] = "2026-11-22T02:14:49.000000Z"
    assert not look()
    assert end(kube_world, place, away).done
    assert graces(kube_world) == [5, 0]


@pytest.mark.parametrize("gap", ["the API server was away", "nobody looked"])
def test_a_lease_says_nothing_of_the_time_in_which_nobody_saw_it(kube_world, monkeypatch, gap):
    """No kubelet can renew while the API server is away."""
    kube, clock = kube_world.kube, SimpleNamespace(now_s=1000.0)
    monkeypatch.setattr(kubernetes, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    kube.add_node("lost")
    kube.leases["lost"] = "0"
    place = kube_world.start("rg_1.0", "lost")

    def look(after_s):
        clock.now_s += after_s
        [(_, said)] = kube_world.scheduler.ends([place], SOON_S)
        return said.code

    assert [look(after_s) for after_s in (0, 9, 9, 6)] == ["runs"] * 4
    if gap == "nobody looked":
        clock.now_s += 60
    else:
        kube.allow = lambda verb, resource, namespace: resource != "leases"
        assert look(3) == "runs"
        kube.allow = None
    assert [look(after_s) for after_s in (3, 9, 9, 6, 3)] == ["runs"] * 4 + ["node-lost"]


@pytest.mark.parametrize("seen", ["renewed", "forbidden", "none"])
def test_a_lease_that_is_renewed_or_cannot_be_seen_forces_nothing(
    kube_world, away, monkeypatch, seen
):
    monkeypatch.setattr(kubernetes, "_UNRENEWED_S", 0.1)
    kube, place, numbers = kube_world.kube, kube_world.start("rg_1.0", "lost"), iter(range(1000))
    kube.set_ready("lost", "True")

    def allow(verb, resource, namespace):
        if seen == "renewed":
            kube.leases["lost"] = str(next(numbers))
        return resource != "leases" or seen != "forbidden"

    kube.allow = allow
    kube.leases |= {} if seen == "none" else {"lost": "0"}
    said = end(kube_world, place, away, timeout_s=0.8)
    assert (said.done, graces(kube_world)) == (False, [5])


def test_a_newer_pod_of_the_name_is_never_called_failed_nor_deleted(kube_world, away, monkeypatch):
    kube, place = kube_world.kube, kube_world.start("rg_1.0", "lost")
    fail = kube._call

    def replaced(namespace, name, body):
        kube.of_a_job = False
        kube_world.renew(place)
        return fail(namespace, name, body)

    monkeypatch.setattr(kube, "_call", replaced)
    assert end(kube_world, place, away).done
    (pod,) = kube.pods.values()
    assert pod["metadata"]["uid"] != place.labels["pod_uid"]
    assert pod["status"]["phase"] == "Running"


def test_without_the_right_to_its_status_that_is_said(kube_world, away):
    kube_world.kube.allow = lambda verb, resource, namespace: resource != "pods/status"
    said = end(kube_world, kube_world.start("rg_1.0", "lost"), away, timeout_s=0.8)
    assert not said.done
    assert "terminating still; not called failed: the API server answers 403" in said.detail


@pytest.mark.parametrize("status", [403, 503])
def test_an_api_server_that_refuses_or_is_away_forces_nothing(kube_world, away, status):
    place = kube_world.start("rg_1.0", "lost")
    kube_world.kube.answers = [(status, "no")] * 1000
    said = end(kube_world, place, away, timeout_s=0.6)
    assert (said.done, away.down) == (False, [])
    assert f"the API server answers {status}: no" in said.detail


@pytest.mark.parametrize("name", ["../nodes", "a b", "A", "a/b", "x" * 300])
def test_a_name_that_is_none_is_refused_and_nothing_is_asked(kube_world, name):
    labels = {"pod": name, "namespace": NAMESPACE, "pod_uid": "0" * 36, "node": NODE}
    assert not remove(kube_world, place_of("rg_1.0", NODE, labels)).done
    assert kube_world.kube.requests == []


# -- without ------------------------------------------------------------------------------------


def test_without_the_client_the_message_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def absent(name, *args, **kwargs):
        if name.partition(".")[0] == "kubernetes":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(KubeUnusableError, match=r"pip install 'lightkeeper\[kubernetes\]'"):
        configured()


def test_without_a_cluster_the_message_is_one_line(monkeypatch, tmp_path):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(KubeUnusableError, match="no cluster is configured"):
        configured()


def test_a_server_that_is_not_there_makes_an_outcome(kube_world):
    kube_world.url = "http://127.0.0.1:1"
    said = kube_world.made().cordon(Host(NODE), WHY, 0.5)
    assert not said.done
    assert "refused" in said.detail
    assert "not installed" not in said.detail


# -- what it says of hosts ---------------------------------------------------------------------


def test_conditions_of_nodes_and_of_pods_testify(kube_world):
    place = kube_world.start("rg_0.0", OTHER)
    kube_world.places.append(place_of("rg_9.0", NODE, {"namespace": "../x", "pod": "a"}))
    at = {"lastTransitionTime": "2026-11-22T02:14:39Z"}
    kube_world.kube.nodes[NODE]["status"]["conditions"] += [
        {"type": "GpuPcieWatch", "status": "True", "message": "[DCGM_FR_PCI] GPU:1", **at}
    ]
    kube_world.kube.pods[NAMESPACE, place.labels["pod"]]["status"] = {
        "conditions": [{"type": "DisruptionTarget", "status": "True",
                        "reason": "PreemptionByScheduler", "message": "a bigger job", **at}]
    }  # fmt: skip
    kube_world.kube.by_hand(OTHER, {"taints": [{"key": "karpenter.sh/disrupted"}]})
    said = list(kube_world.scheduler.testimonies({NODE, OTHER, "gone"}, SOON_S))
    assert sorted((*names, each.weight, each.text) for names, each in said) == [
        (NODE, "broken", "NVSentinel, GpuPcieWatch: [DCGM_FR_PCI] GPU:1"),
        (OTHER, "leaving", "Karpenter removes the node"),
        (OTHER, "leaving", "a pod is preempted: a bigger job"),
    ]


def test_what_could_be_read_before_a_refusal_counts(kube_world):
    kube_world.start("rg_0.0", OTHER)
    kube_world.kube.by_hand(OTHER, {"unschedulable": True})
    kube_world.kube.allow = lambda verb, resource, namespace: resource == "nodes"
    said = iter(kube_world.scheduler.testimonies({NODE, OTHER}, SOON_S))
    names, cordoned = next(said)
    assert (*names, cordoned.code) == (OTHER, "cordoned")
    with pytest.raises(NotDone, match="pods is forbidden"):
        next(said)


# -- how it ended ------------------------------------------------------------------------------


def test_an_end_is_asked_by_the_rights_that_the_role_has(kube_world):
    granted = {("list", "pods"), ("list", "nodes"), ("get", "nodes")}
    kube_world.kube.allow = lambda verb, resource, _: (verb, resource) in granted
    mine, other = kube_world.start("rg_1.0", NODE), kube_world.start("rg_0.0", OTHER)
    del kube_world.kube.pods[NAMESPACE, mine.labels["pod"]]
    kube_world.kube.by_hand(NODE, {"unschedulable": True})
    said = {place.rank: each.code for place, each in kube_world.scheduler.ends([mine, other], 2.0)}
    assert said == {"rg_1.0": "drained", "rg_0.0": "runs"}
    kube_world.kube.allow = lambda *_: False
    with pytest.raises(NotDone, match="forbidden"):
        list(kube_world.scheduler.ends([mine], 2.0))
    assert "forbidden" in kube_world.scheduler.tried(2.0).detail


def test_a_pod_that_we_had_deleted_is_told_from_one_that_we_may_not_delete(kube_world):
    ours, theirs = kube_world.start("rg_1.0", NODE), kube_world.start("rg_0.0", OTHER)
    assert remove(kube_world, ours).done
    kube_world.kube.allow = lambda verb, *_: verb != "delete"
    assert not remove(kube_world, theirs, group=GroupName("rg_0")).done
    del kube_world.kube.pods[NAMESPACE, theirs.labels["pod"]]
    said = {place.rank: each.code for place, each in kube_world.scheduler.ends([ours, theirs], 2.0)}
    assert said == {"rg_1.0": "evicted", "rg_0.0": "deleted"}


def test_ranks_of_one_pod_are_asked_for_once(kube_world):
    first = kube_world.start("rg_1.0", NODE)
    second = kube_world.start("rg_1.1", NODE, beside=first)
    kube_world.kube.requests.clear()
    assert len(list(kube_world.scheduler.ends([first, second], 2.0))) == 2
    assert [request.resource for request in kube_world.kube.requests] == [
        "pods", "nodes", "leases",
    ]  # fmt: skip


def test_a_certificate_that_is_not_accepted_is_said_in_a_sentence():
    error = (
        "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify "
        "failed: CA cert does not include key usage extension (_ssl.c:1032)'))"
    )
    assert _unreached(Exception(error)) == (
        "the API server's certificate is not accepted: CA cert does not include key usage "
        "extension (docs/deploy.md)"
    )
    assert _unreached(OSError("Failed to resolve 'api.x'")) == "Failed to resolve 'api.x'"
