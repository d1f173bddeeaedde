"""examples/kubernetes: N groups rendered by kustomize, and what must hold for them."""

from __future__ import annotations

import filecmp
import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from torch.distributed.run import get_args_parser as torchruns

from lightkeeper.dashboards import committed
from lightkeeper.trainer import options as trainer_options
from tests.dashboards import operator_rules as written
from tests.examples.fleet import KUBERNETES, dumped, kustomize, new_overlay, render
from tests.monitor.commands.parsing import parsed

pytestmark = [
    pytest.mark.integration,  # kubectl is a process
    pytest.mark.skipif(kustomize() is None, reason="neither kustomize nor kubectl is here"),
]
GROUPS = 5
ROOT = Path(__file__).parents[2]
SCALE = ROOT / "docs" / "scale.md"
DASHBOARDS = ROOT / "dashboards"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    return render(new_overlay(tmp_path_factory.mktemp("overlay"), "my-job", GROUPS, 3))


def container_of(pod):
    [container] = pod["spec"]["containers"]
    return container


def settings(fleet, namespace):
    return fleet.one("ConfigMap", "fleet", namespace)["data"]


def groups(fleet):
    return [job["spec"]["template"] for job in fleet.all("Job")]


def test_the_committed_overlay_is_what_the_script_writes(tmp_path):
    written, committed = new_overlay(tmp_path, "again", 2, 1), KUBERNETES / "two-groups"
    text = (written / "kustomization.yaml").read_text().replace("again", "two-groups")
    assert text == (committed / "kustomization.yaml").read_text()
    for name in ("rg_0", "rg_1"):
        compared = filecmp.dircmp(written / name, committed / name)
        assert compared.common_files == ["kustomization.yaml"]
        assert compared.diff_files == []
    assert len(render(committed).all("Job")) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["job"], "usage"),
        (["job", "2", "3"], "1 <= MIN_REPLICAS <= GROUPS"),
        (["job", "two"], "whole numbers"),
        (["two-groups", "2"], "is there already"),
    ],
    ids=["no number", "more than there are", "a word", "an overlay that is there"],
)
def test_a_wrong_order_is_one_line_and_writes_nothing(words, said, tmp_path):
    folder = new_overlay(tmp_path, "first", 1).parent
    before = sorted(folder.rglob("*"))
    done = subprocess.run(
        ["sh", folder / "new-overlay.sh", *words], check=False, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert sorted(folder.rglob("*")) == before


def test_values_change_images_script_ranks_and_cards_of_every_group(tmp_path):
    values = tmp_path / "my-values.env"
    values.write_text(
        "TRAIN_IMAGE=registry.corp:5000/team/train:7\nKEEPER_IMAGE=registry.corp/keeper:1\n"
        'RANKS_PER_GROUP=4\nGPUS_PER_GROUP=0\nTRAIN="train.py --lr 1e-4"\n'
        "CPU=4\nMEMORY=8Gi\nSHM=2Gi\nNODE_LABEL=pool=train\nCHECKPOINTS=50Gi\nSTORAGE_CLASS=nfs\n"
    )
    fleet = render(new_overlay(tmp_path, "valued", 2, 1, values))
    ranks = [container_of(pod) for pod in groups(fleet)]
    assert len(ranks) == 2
    for container in ranks:
        assert container["image"] == "registry.corp:5000/team/train:7"
        assert container["command"][4] == "--nproc-per-node=4"
        assert container["command"][7:] == ["train.py", "--lr", "1e-4"]
        assert container["resources"] == {
            "limits": {"memory": "8Gi"}, "requests": {"cpu": "4", "memory": "8Gi"},
        }  # fmt: skip
        assert {"name": "checkpoints", "mountPath": "/checkpoints"} in container["volumeMounts"]
    for pod in groups(fleet):
        assert pod["spec"]["nodeSelector"] == {"pool": "train"}
        shm, checkpoints = pod["spec"]["volumes"][-2:]
        assert shm["emptyDir"]["sizeLimit"] == "2Gi"
        assert checkpoints["persistentVolumeClaim"] == {"claimName": "checkpoints"}
    claims = fleet.all("PersistentVolumeClaim")
    assert {claim["spec"]["storageClassName"] for claim in claims} == {"nfs"}
    assert "checkpoints" in {claim["metadata"]["name"] for claim in claims}
    assert {container_of(pod)["image"] for pod in head(fleet).values()} >= {
        "registry.corp/keeper:1"
    }
    validate = pytest.importorskip("kubernetes_validate")
    for made in fleet.objects:
        validate.validate(made, "1.34", strict=True)


def test_the_values_that_are_shown_are_those_of_the_files(tmp_path):
    given = render(new_overlay(tmp_path, "same", 2, 1, KUBERNETES / "values.env"))
    assert given.all("Job") == render(new_overlay(tmp_path / "2", "same", 2, 1)).all("Job")


def test_checkpoints_alone_make_the_shown_trainer_keep_and_find_them(tmp_path):
    values = tmp_path / "values.env"
    values.write_text("CHECKPOINTS=50Gi\n")
    for pod in groups(render(new_overlay(tmp_path, "kept", 2, 1, values))):
        command = container_of(pod)["command"]
        words = command[command.index("lightkeeper.trainer.train") + 1 :]
        options = trainer_options.rank_options(words)
        assert (options.checkpoint_dir, options.resume) == (Path("/checkpoints"), True)


def test_the_control_plane_keeps_away_from_ranks_and_leaves_a_lost_node_soon(fleet):
    for pod in head(fleet).values():
        spec = pod["spec"]
        if pod["metadata"]["labels"]["app"] == "lightkeeper-gate":
            continue
        assert spec["priorityClassName"] == "lightkeeper-control"
        assert {each["tolerationSeconds"] for each in spec["tolerations"]} == {10}
        assert "podAntiAffinity" in spec["affinity"]
    assert fleet.one("PriorityClass", "lightkeeper-control")
    lighthouse = container_of(head(fleet)["lighthouse"])
    assert {"name": "RUST_LOG", "value": "warn"} in lighthouse["env"]


@pytest.mark.parametrize("line", ["TRAIN_IMAGE=train", "RANKS_PER_GROUP=many", "NODE_LABEL=pool"])
def test_a_wrong_value_is_one_line_and_writes_nothing(line, tmp_path):
    folder = new_overlay(tmp_path, "first", 1).parent
    (tmp_path / "values.env").write_text(f"{line}\n")
    done = subprocess.run(
        ["sh", folder / "new-overlay.sh", "job", "2", "1", tmp_path / "values.env"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert not (folder / "job").exists()


@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_all_of_it_follows_kubernetes_own_schemas(fleet, version):
    validate = pytest.importorskip("kubernetes_validate")
    for item in fleet.objects:
        validate.validate(item, version, strict=True)


def test_each_group_is_another_one_and_its_ranks_know_which(fleet):
    jobs = fleet.all("Job")
    labels = [job["spec"]["template"]["metadata"]["labels"] for job in jobs]
    names = [label["lightkeeper.dev/group-id"] for label in labels]
    assert sorted(names) == [f"rg_{n}" for n in range(GROUPS)]
    assert len({job["metadata"]["name"] for job in jobs}) == GROUPS
    for pod in groups(fleet):
        environ = {variable["name"]: variable for variable in container_of(pod)["env"]}
        paths = {name: variable["valueFrom"]["fieldRef"]["fieldPath"]
                 for name, variable in environ.items() if "valueFrom" in variable}  # fmt: skip
        assert paths["REPLICA_GROUP"] == "metadata.labels['lightkeeper.dev/group-id']"
        assert paths["LIGHTKEEPER_HOST"] == "spec.nodeName"
        assert {"POD_NAME", "POD_NAMESPACE", "POD_UID"} <= set(paths)


def test_groups_differ_in_their_names_alone(fleet):
    def shape(job):
        text = dumped([job["spec"]])
        return text.replace(job["metadata"]["labels"]["lightkeeper.dev/group-id"], "NAME")

    assert len({shape(job) for job in fleet.all("Job")}) == 1


def test_all_groups_ask_the_same_lighthouse_through_the_gate(fleet):
    assert settings(fleet, "train")["TORCHFT_LIGHTHOUSE"] == "http://lightkeeper-gate.train:29511"
    assert settings(fleet, "lightkeeper") == {
        "MIN_REPLICAS": "3",
        "TORCHFT_LIGHTHOUSE": "http://lighthouse.train:29510",
        "LIGHTKEEPER_GATE": "http://lightkeeper-gate.train:8471",
    }
    for pod in groups(fleet):
        container = container_of(pod)
        assert container["envFrom"] == [{"configMapRef": {"name": "fleet"}}]
        assert "TORCHFT_LIGHTHOUSE" not in {variable["name"] for variable in container["env"]}


def test_without_the_gate_they_ask_it_directly(tmp_path):
    overlay = new_overlay(tmp_path, "plain", 2)
    path = overlay / "kustomization.yaml"
    path.write_text(path.read_text().replace("components:\n  - ../gate\n", ""))
    plain = render(overlay)
    assert settings(plain, "train")["TORCHFT_LIGHTHOUSE"] == "http://lighthouse.train:29510"
    assert "LIGHTKEEPER_GATE" not in settings(plain, "lightkeeper")
    assert {"role": "rank"} in admitted(plain, "lighthouse", 29510)


def test_every_address_is_a_service_with_that_port_and_a_pod_behind_it(fleet):
    text = dumped(fleet.objects)
    addresses = set(re.findall(r"http://([\w-]+)\.([\w-]+):(\d+)", text))
    assert len(addresses) == 4
    for name, namespace, port in addresses:
        service = fleet.one("Service", name, namespace)
        [target] = [port_row["targetPort"] for port_row in service["spec"]["ports"]
                    if port_row["port"] == int(port)]  # fmt: skip
        [pod] = matched(fleet, namespace, service["spec"]["selector"])
        ports = {
            port_row["name"]: port_row["containerPort"] for port_row in container_of(pod)["ports"]
        }
        assert ports[target] == int(port)


def matched(fleet, namespace, labels):
    return [
        pod
        for pod in fleet.pods()
        if pod["namespace"] == namespace and labels.items() <= pod["metadata"]["labels"].items()
    ]


def test_every_selector_of_a_policy_and_a_budget_selects_somebody(fleet):
    for policy in fleet.all("NetworkPolicy"):
        labels = policy["spec"]["podSelector"]["matchLabels"]
        assert matched(fleet, policy["metadata"]["namespace"], labels)
    for policy in fleet.all("PodDisruptionBudget"):
        labels = policy["spec"]["selector"]["matchLabels"]
        assert matched(fleet, policy["metadata"]["namespace"], labels)


def admitted(fleet, name, port, namespace="train"):
    """The pod labels that a policy lets in on a port."""
    rules = fleet.one("NetworkPolicy", name, namespace)["spec"]["ingress"]
    return [
        peer["podSelector"]["matchLabels"]
        for rule in rules
        if "ports" not in rule or port in {listed["port"] for listed in rule["ports"]}
        for peer in rule["from"]
    ]


def test_the_control_ports_hear_those_who_need_them_and_nobody_else(fleet):
    keeper, rank = {"app": "lightkeeper"}, {"role": "rank"}
    assert admitted(fleet, "lighthouse", 29510) == [{"app": "lightkeeper-gate"}, keeper]
    gate = {"app": "lightkeeper-gate"}
    assert admitted(fleet, "lightkeeper-gate", 29511) == [rank, gate]
    assert admitted(fleet, "lightkeeper-gate", 8471) == [gate, keeper]
    assert admitted(fleet, "lightkeeper", 8470, "lightkeeper") == [rank]
    assert admitted(fleet, "ranks", 9470) == [rank, {"app": "lighthouse"}, keeper]


def test_the_token_is_mounted_read_only_wherever_it_is_and_is_in_no_variable(fleet):
    holders = []
    for pod in fleet.pods():
        secret = {volume["name"] for volume in pod["spec"].get("volumes", []) if "secret" in volume}
        mounts = container_of(pod).get("volumeMounts", [])
        held = [mount for mount in mounts if mount["name"] in secret]
        assert all(mount["readOnly"] for mount in held)
        holders += held
        modes = [volume["secret"]["defaultMode"]
                 for volume in pod["spec"].get("volumes", []) if "secret" in volume]  # fmt: skip
        assert modes == [0o440] * len(held)
    assert len(holders) == GROUPS + 2  # the groups, the monitor, the gate; not the Lighthouse
    assert "secretKeyRef" not in dumped(fleet.objects)


def breaches(spec):
    """What Kubernetes' `restricted` pod security standard (v1.31) would refuse a Linux pod for."""
    shared = spec.get("securityContext", {})
    if any(spec.get(word) for word in ("hostNetwork", "hostPID", "hostIPC")):
        yield "host namespaces"
    allowed = {"name", "configMap", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected",
               "secret", "csi", "downwardAPI"}  # fmt: skip
    for volume in spec.get("volumes", []):
        if set(volume) - allowed:
            yield f"volume {volume['name']}"
    for container in spec["containers"] + spec.get("initContainers", []):
        own = container.get("securityContext", {})
        context = {**shared, **own}
        if context.get("runAsNonRoot") is not True or not context.get("runAsUser"):
            yield "may be root"
        if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
            yield "may become more"
        if own.get("capabilities") != {"drop": ["ALL"]}:
            yield "capabilities"
        if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield "system calls"


def test_both_namespaces_demand_the_restricted_standard_and_every_pod_meets_it(fleet):
    for name in ("lightkeeper", "train"):
        labels = fleet.one("Namespace", name)["metadata"]["labels"]
        levels = {key: labels[f"pod-security.kubernetes.io/{key}"]
                for key in ("enforce", "warn", "audit")}  # fmt: skip
        assert set(levels.values()) == {"restricted"}
    for pod in fleet.pods():
        assert list(breaches(pod["spec"])) == []
    extras = KUBERNETES / "extras"
    rank = yaml.safe_load((extras / "rank.yaml").read_text())
    jobset = yaml.safe_load((extras / "jobset.yaml").read_text())
    nodes = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    assert list(breaches(rank["spec"])) == list(breaches(nodes["spec"])) == []


@pytest.mark.parametrize(
    ("change", "breach"),
    [
        ({"hostNetwork": True}, "host namespaces"),
        ({"securityContext": {}}, "may be root"),
        ({"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}, "volume root"),
    ],
    ids=["host network", "root", "a host's folder"],
)
def test_a_pod_that_asks_for_more_would_be_seen(fleet, change, breach):
    spec = groups(fleet)[0]["spec"]
    assert breach in breaches({**spec, **change})


def head(fleet):
    return {
        "monitor": fleet.one("Deployment", "lightkeeper", "lightkeeper")["spec"]["template"],
        "gate": fleet.one("Deployment", "lightkeeper-gate")["spec"]["template"],
        "lighthouse": fleet.one("Deployment", "lighthouse")["spec"]["template"],
    }


def test_the_head_s_pods_write_to_their_volumes_alone_and_have_bounds(fleet):
    for pod in head(fleet).values():
        container = container_of(pod)
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        bounds = container["resources"]
        assert {*bounds["requests"]} == {*bounds["limits"]} == {"cpu", "memory"}


def test_the_monitor_has_room_for_ten_thousand_ranks(fleet):
    """Their rows in docs/scale.md: what it took at the most."""
    rows = re.findall(r"^\| 10,000, .*", SCALE.read_text(), re.MULTILINE)
    peak = max(int(mebi) for row in rows for mebi in re.findall(r"(\d+) MiB", row))
    bounds = container_of(head(fleet)["monitor"])["resources"]
    assert peak <= mebibytes(bounds["requests"]["memory"])
    assert 2 * peak <= mebibytes(bounds["limits"]["memory"])


def mebibytes(text):
    return int(text[:-2]) * {"Mi": 1, "Gi": 1024}[text[-2:]]


def test_probes_ask_what_costs_nothing(fleet):
    monitor, gate = (container_of(head(fleet)[name]) for name in ("monitor", "gate"))
    assert monitor["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert monitor["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert gate["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": "admin"}


def test_what_goes_out_of_gate_and_monitor_goes_to_those_they_speak_to(fleet):
    gate = fleet.one("NetworkPolicy", "lightkeeper-gate")["spec"]["egress"]
    assert [rule["to"] for rule in gate if "to" in rule] == [
        [{"podSelector": {"matchLabels": {"app": name}}}]
        for name in ("lighthouse", "lightkeeper-gate")
    ]
    monitor = fleet.one("NetworkPolicy", "lightkeeper", "lightkeeper")["spec"]["egress"]
    [outside] = [peer["ipBlock"] for rule in monitor for peer in rule.get("to", [])
                 if "ipBlock" in peer]  # fmt: skip
    assert "169.254.0.0/16" in outside["except"]  # the cloud's metadata
    for rules in (gate, monitor):
        everywhere = [rule["ports"] for rule in rules if "to" not in rule]
        assert {port["port"] for ports in everywhere for port in ports} == {53}


def test_only_the_monitor_may_speak_to_kubernetes(fleet):
    """What it may, and that its code asks for all of it: test_manifests.py beside its driver."""
    speaking = [pod["spec"].get("serviceAccountName") for pod in fleet.pods()
                if pod["spec"].get("automountServiceAccountToken", True)]  # fmt: skip
    assert speaking == ["lightkeeper"]
    subjects = [
        subject for kind in ("RoleBinding", "ClusterRoleBinding")
        for binding in fleet.all(kind) for subject in binding["subjects"]
    ]  # fmt: skip
    assert {(subject["kind"], subject["name"]) for subject in subjects} == {
        ("ServiceAccount", "lightkeeper")
    }


def test_no_probe_restarts_a_rank_and_its_pod_is_made_anew_rather_than_its_container(fleet):
    for job in fleet.all("Job"):
        container = container_of(job["spec"]["template"])
        assert not {"livenessProbe", "readinessProbe", "startupProbe"} & set(container)
        assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
        assert job["spec"]["podReplacementPolicy"] == "Failed"
        assert job["spec"]["backoffLimit"] > 10_000
    lighthouse = fleet.one("Deployment", "lighthouse")["spec"]["template"]
    assert "livenessProbe" not in container_of(lighthouse)


def test_a_rank_has_the_time_to_end_that_torchrun_is_told(fleet):
    for pod in groups(fleet):
        environ = {variable["name"]: variable.get("value") for variable in container_of(pod)["env"]}
        assert pod["spec"]["terminationGracePeriodSeconds"] > int(environ["GROUP_GRACE_S"]) + 10


def test_a_drain_passes_gate_and_lighthouse(fleet):
    for name in ("lighthouse", "lightkeeper-gate"):
        budget = fleet.one("PodDisruptionBudget", name)["spec"]
        assert (budget.get("maxUnavailable"), budget.get("minAvailable")) == (1, None)
        pod = container_of(fleet.one("Deployment", name)["spec"]["template"])
        assert pod["readinessProbe"]["periodSeconds"] == 1  # nobody is sent to the next before


def test_the_next_gate_is_ready_before_the_old_one_is_told_to_end(fleet):
    """And its volumes bind it to no node, and it looks for the old one where that is found."""
    gate = fleet.one("Deployment", "lightkeeper-gate")["spec"]
    assert gate["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    pod = gate["template"]["spec"]
    assert not any("persistentVolumeClaim" in volume for volume in pod["volumes"])
    words = parsed(*container_of(gate["template"])["args"][1:]).params
    assert words["grace"] + 10 < pod["terminationGracePeriodSeconds"]
    service = fleet.one("Service", "lightkeeper-gate-pods")
    assert words["take_over"] == "lightkeeper-gate-pods.train:8471"
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == (
        "None", True
    )  # fmt: skip
    assert service["spec"]["selector"].items() <= gate["template"]["metadata"]["labels"].items()


def test_a_drain_takes_one_group_at_a_time(fleet):
    assert fleet.one("PodDisruptionBudget", "ranks")["spec"]["minAvailable"] == GROUPS - 1


def test_others_find_a_rank_by_the_name_that_torchft_hands_out(fleet):
    service = fleet.one("Service", "ranks")["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True
    for pod in groups(fleet):
        assert pod["spec"]["subdomain"] == "ranks"
        assert pod["spec"]["setHostnameAsFQDN"] is True
        assert service["selector"].items() <= pod["metadata"]["labels"].items()
        address = [word for word in container_of(pod)["command"] if "--master-addr" in word]
        assert address == ["--master-addr=$(JOB_NAME)-0.ranks.train.svc"]


def test_monitor_and_gate_understand_their_arguments(fleet):
    pods = [
        fleet.one("Deployment", "lightkeeper", "lightkeeper"),
        fleet.one("Deployment", "lightkeeper-gate"),
    ]
    for deployment in pods:
        command, *words = container_of(deployment["spec"]["template"])["args"]
        assert command == "lightkeeper"
        words = [word.replace("$(MIN_REPLICAS)", "3") for word in words]
        parsed(*words)  # wrong use raises


def test_every_variable_that_is_set_is_one_that_is_read(fleet):
    files = [path for name in ("worker_server", "monitor") for path in (ROOT / name).rglob("*.py")]
    sources = "\n".join(path.read_text() for path in files)
    variables = {variable["name"] for pod in groups(fleet) for variable in container_of(pod)["env"]}
    for namespace in ("train", "lightkeeper"):
        variables |= set(settings(fleet, namespace))
    for name in variables - {"GROUP_GRACE_S", "JOB_NAME", "MIN_REPLICAS"}:
        assert f'"{name}"' in sources, name


def test_torchrun_and_the_trainer_understand_theirs(fleet):
    words = container_of(groups(fleet)[0])["command"]
    assert words[:2] == ["sh", "/launch/group.sh"]
    at = words.index("-m")
    assert words[at + 1] == "lightkeeper.trainer.train"
    trainer_options.rank_options(words[at + 2 :])
    torchrun = ["--max-restarts=0", "--shutdown-timeout=20", *words[2:]]
    torchrun = [word.replace("$(JOB_COMPLETION_INDEX)", "0") for word in torchrun]
    read = torchruns().parse_args(torchrun)
    assert (read.master_addr, read.max_restarts) == ("$(JOB_NAME)-0.ranks.train.svc", 0)
    assert read.training_script == "lightkeeper.trainer.train"


def test_the_lighthouse_has_every_option_that_it_is_given(fleet, tmp_path):
    words = container_of(fleet.one("Deployment", "lighthouse")["spec"]["template"])["command"]
    assert (Path(sys.executable).parent / words[0]).exists()
    script = tmp_path / words[0]  # as that, but without torch, which the package imports
    script.write_text("import _torchft\n_torchft.lighthouse_main()\n")
    package = find_spec("torchft").submodule_search_locations[0]
    said = subprocess.run(
        [sys.executable, script, "--help"], env={"PYTHONPATH": package}, check=True,
        capture_output=True, text=True,
    ).stdout  # fmt: skip
    for word in words[1:]:
        assert word.partition("=")[0] in said


def test_a_jobset_is_one_group_and_has_the_fields_that_jobset_knows():
    models = pytest.importorskip("kubeflow_trainer_api.models.jobset_v1alpha2_job_set")
    jobset = yaml.safe_load((KUBERNETES / "extras" / "jobset.yaml").read_text())
    read = models.JobsetV1alpha2JobSet.from_dict(jobset)
    assert read.to_dict() == jobset  # a field that it does not know would be lost
    [nodes] = jobset["spec"]["replicatedJobs"]
    assert nodes["replicas"] == 1
    job = nodes["template"]["spec"]
    words = container_of(job["template"])["command"]
    assert f"--nnodes={job['parallelism']}" in words
    assert job["parallelism"] == job["completions"]


def test_the_jobs_of_a_jobset_follow_kubernetes_own_schema():
    validate = pytest.importorskip("kubernetes_validate")
    jobset = yaml.safe_load((KUBERNETES / "extras" / "jobset.yaml").read_text())
    spec = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "rg-0"}, "spec": spec}
    validate.validate(job, "1.31", strict=True)


# -- where the Prometheus operator is -------------------------------------------------------------


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    """With the component `monitoring`."""
    folder = tmp_path_factory.mktemp("scraped")
    path = new_overlay(folder, "my-job", 2)
    shutil.copytree(DASHBOARDS, folder / "dashboards")
    text = (path / "kustomization.yaml").read_text()
    with_it = text.replace("  - ../gate\n", "  - ../gate\n  - ../monitoring\n")
    (path / "kustomization.yaml").write_text(with_it)
    return render(path)


def test_the_committed_rules_are_what_the_files_for_prometheus_say(scraped):
    assert written.PATH.read_text() == written.made(), "make dashboards writes it"
    [rule] = scraped.all("PrometheusRule")
    groups = [
        group for name in ("rules.yml", "alerts.yml")
        for group in yaml.safe_load((DASHBOARDS / "prometheus" / name).read_text())["groups"]
    ]  # fmt: skip
    ours = json.dumps(groups).replace(
        "http://127.0.0.1:8470", "http://lightkeeper.lightkeeper:8470"
    )
    assert rule["spec"]["groups"] == json.loads(ours)


def test_every_dashboard_is_a_config_map_for_grafana_s_sidecar(scraped):
    maps = {
        item["metadata"]["name"]: item for item in scraped.all("ConfigMap")
        if item["metadata"].get("labels", {}).get("grafana_dashboard") == "1"
    }  # fmt: skip
    boards = committed.read_boards()
    assert maps.keys() == {board["uid"] for board in boards}
    for board in boards:
        assert [json.loads(text) for text in maps[board["uid"]]["data"].values()] == [board]


def test_it_scrapes_what_the_example_for_a_plain_prometheus_scrapes(scraped):
    [monitor], [gate], [ranks] = map(scraped.all, ("ServiceMonitor", "PodMonitor", "ScrapeConfig"))
    service = scraped.one("Service", "lightkeeper", "lightkeeper")
    assert monitor["spec"]["selector"]["matchLabels"] == service["metadata"]["labels"]
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    [pod] = matched(scraped, "train", gate["spec"]["selector"]["matchLabels"])
    ports = {port["name"]: port["containerPort"] for port in container_of(pod)["ports"]}
    assert ports[gate["spec"]["podMetricsEndpoints"][0]["port"]] == 8471
    [discovery] = ranks["spec"]["httpSDConfigs"]
    assert discovery["url"] == "http://lightkeeper.lightkeeper:8470/v1/sd"
    assert ranks["spec"]["authorization"]["credentials"]["name"] == "lightkeeper-token"

    example = yaml.safe_load((DASHBOARDS / "prometheus/prometheus.example.yml").read_text())
    plain = {job["job_name"]: job for job in example["scrape_configs"]}
    named = {
        row["replacement"]
        for rows in (monitor["spec"]["endpoints"][0], gate["spec"]["podMetricsEndpoints"][0],
                     ranks["spec"])
        for row in rows["relabelings"] if row["targetLabel"] == "job"
    }  # fmt: skip
    assert named == plain.keys() | {"lightkeeper-gate"}
    assert (
        ranks["spec"]["metricRelabelings"] == plain["lightkeeper-ranks"]["metric_relabel_configs"]
    )
    [listed] = plain["lightkeeper-ranks"]["http_sd_configs"]
    assert (listed["refresh_interval"], listed["url"].rpartition("8470")[2]) == (
        discovery["refreshInterval"], "/v1/sd",
    )  # fmt: skip


def test_prometheus_is_let_in_where_it_scrapes_and_nowhere_else(scraped, fleet):
    prometheus = {"app.kubernetes.io/name": "prometheus"}
    for namespace, name, port in (
        ("lightkeeper", "prometheus", 8470), ("train", "prometheus-gate", 8471),
        ("train", "prometheus-ranks", 12345),
    ):  # fmt: skip
        assert admitted(scraped, name, port, namespace) == [prometheus]
    assert admitted(scraped, "prometheus-gate", 29511) == []
    assert admitted(scraped, "prometheus", 22, "lightkeeper") == []
    assert len(scraped.all("NetworkPolicy")) == len(fleet.all("NetworkPolicy")) + 3
