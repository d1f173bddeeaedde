"""Where a scheduler put a process: what it names, and what it leaves out."""

from __future__ import annotations

import json

import pytest

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank.identity import identity_from, place_from
from lightkeeper.worker_server.rank.page.layout import IDENTITY_BYTES
from tests.changed import replace

UID = "0d5a8f5e-3a4c-4b1c-9b1f-2f3d5f6a7b8c"
OTHER_UID = "11111111-3a4c-4b1c-9b1f-2f3d5f6a7b8c"
HOSTS_FILE = (
    f"914 881 254:1 /var/lib/kubelet/pods/{UID}/etc-hosts /etc/hosts rw,relatime - ext4 /dev/vda1\n"
)
NO_FILES = lambda path: ""  # noqa: E731


def place(environ, read=NO_FILES, hostname="box"):
    return place_from(environ, lambda: hostname, read)


def test_a_process_that_no_scheduler_started_has_no_place():
    assert place({"RANK": "0", "NODE_NAME": "jenkins-3"}) == {}


def test_a_step_of_slurm_names_its_job_step_and_node():
    environ = {
        "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "2", "SLURMD_NODENAME": "gpu7",
        "SLURM_RESTART_COUNT": "1",
    }  # fmt: skip
    assert place(environ) == {
        "slurm_job_id": "4711", "slurm_step_id": "2", "slurm_node": "gpu7", "slurm_restarts": "1",
    }  # fmt: skip


def test_a_batch_script_of_slurm_names_no_step():
    assert place({"SLURM_JOB_ID": "4711", "SLURMD_NODENAME": "gpu7"}) == {
        "slurm_job_id": "4711",
        "slurm_node": "gpu7",
    }


def test_a_pod_that_its_manifest_told_nothing_still_finds_name_namespace_and_uid():
    files = {"/proc/self/mountinfo": HOSTS_FILE}
    files["/var/run/secrets/kubernetes.io/serviceaccount/namespace"] = "train\n"
    pod = place(
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, lambda path: files.get(path, ""), "job-1-worker-0"
    )
    assert pod == {"pod": "job-1-worker-0", "namespace": "train", "pod_uid": UID}


def test_what_the_manifest_says_wins_over_the_files():
    environ = {
        "KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAME": "w0", "POD_NAMESPACE": "team",
        "POD_UID": OTHER_UID, "K8S_NODE_NAME": "node7",
    }  # fmt: skip
    assert place(environ, lambda path: HOSTS_FILE) == {
        "pod": "w0", "namespace": "team", "pod_uid": OTHER_UID, "node": "node7",
    }  # fmt: skip


def test_a_pod_with_the_nodes_network_does_not_take_the_nodes_name_for_its_own():
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "K8S_NODE_NAME": "node7"}
    assert place(environ, hostname="node7") == {"node": "node7"}


def test_a_pod_that_sees_the_folders_of_many_pods_does_not_guess_which_is_its_own():
    mounts = HOSTS_FILE + HOSTS_FILE.replace(UID, OTHER_UID)
    assert "pod_uid" not in place({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, lambda path: mounts)


def test_a_user_adds_what_a_scheduler_of_his_own_needs():
    environ = {"LIGHTKEEPER_PLACE": "task=t-17, rack=r3,nonsense,=x,empty="}
    assert place(environ) == {"task": "t-17", "rack": "r3"}


@pytest.mark.parametrize("value", ["x" * 129, "café", "two\nlines"], ids=["long", "odd", "lines"])
def test_a_value_that_does_not_fit_is_left_out_and_never_cut(value):
    assert place({"POD_UID": UID, "POD_NAME": value, "POD_NAMESPACE": "n"}) == {
        "namespace": "n",
        "pod_uid": UID,
    }


def test_the_longest_place_leaves_room_in_the_page():
    many = ",".join(f"key{n}={'v' * 128}" for n in range(40))
    who = identity_from({"LIGHTKEEPER_PLACE": many}, 1, "one", lambda: "h", NO_FILES)
    assert 0 < len(who.place) <= wire.PLACE_KEYS_MAX
    blob = json.dumps({**vars(who), "job": "j" * 128, "group": "g" * 128, "host": "h" * 128})
    assert len(blob) < IDENTITY_BYTES


WHO = wire.Identity("job", wire.GroupName("rg_1"), 0, 2, wire.Host("h"), 7, "abc")
PROCESS = wire.Process(alive=True, state="S")


def test_the_place_travels_with_the_state_and_an_empty_one_takes_no_room():
    placed = replace(WHO, place={"slurm_job_id": "1"})
    body = wire.to_json(wire.StateReport(placed, PROCESS, None))
    assert wire.parse_state(json.loads(json.dumps(body))).identity == placed
    assert "place" not in wire.to_json(wire.StateReport(WHO, PROCESS, None))["identity"]


def test_an_old_sidecar_that_tells_no_place_is_understood():
    body = wire.to_json(wire.StateReport(WHO, PROCESS, None))
    assert wire.parse_state(body).identity.place == {}


@pytest.mark.parametrize(
    "odd",
    [
        {f"k{n}": "v" for n in range(17)}, {"k": "v" * 129}, {"k" * 65: "v"}, {"k": 3}, ["k"],
        {"k": "a\nb"},
    ],
    ids=["too many", "too long", "long key", "a number", "a list", "two lines"],
)  # fmt: skip
def test_a_place_out_of_bounds_is_refused(odd):
    body = wire.to_json(wire.StateReport(WHO, PROCESS, None))
    body["identity"]["place"] = odd
    with pytest.raises(wire.WireError, match=r"place|'k'"):
        wire.parse_state(body)
