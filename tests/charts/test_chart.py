"""The chart says what examples/kubernetes says, and nothing of it can end a training pod."""

from __future__ import annotations

import base64
import json
import shutil
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightkeeper.dashboards import committed
from lightkeeper.monitor.rulebook import effective
from tests.charts.helm import CHART, call, chart, helm
from tests.examples.fleet import Fleet, Object, dumped, kustomize, new_overlay, render
from tests.monitor.commands.parsing import parsed

pytestmark = [
    pytest.mark.integration,  # helm is a process
    pytest.mark.skipif(helm() is None, reason="helm is neither on PATH nor in /var/tmp/helm/bin"),
]
ROOT = CHART.parents[1]
EVERYTHING = {name: {"enabled": True} for name in ("monitoring", "rules", "dashboards")}


def same(item: Object) -> Object:
    """An object without what helm alone adds."""
    meta = dict(item["metadata"])
    for part in ("labels", "annotations"):
        kept = {
            key: value for key, value in meta.pop(part, {}).items()
            if not key.startswith(("app.kubernetes.io/", "helm.sh/"))
        }  # fmt: skip
        meta |= {part: kept} if kept else {}
    if (item["kind"], meta["name"], meta.get("namespace")) == ("ConfigMap", "fleet", "lightkeeper"):
        meta["name"] = (
            "lightkeeper"  # release and job may share a namespace, so it has another name
        )
    made = json.loads(json.dumps({**item, "metadata": meta}))
    if item["kind"] == "Deployment":
        pod = made["spec"]["template"]
        pod["metadata"].get("annotations", {}).pop("checksum/values", None)
        pod["metadata"] = {key: value for key, value in pod["metadata"].items() if value}
        for container in pod["spec"]["containers"]:
            references = container.get("envFrom", ()) if container["name"] == "monitor" else ()
            for reference in references:
                reference["configMapRef"]["name"] = "lightkeeper"
    return made


def by_name(fleet: Fleet, *without: str) -> dict[tuple[str, str, str], Object]:
    made = [same(item) for item in fleet.objects if item["kind"] not in without]
    return {
        (item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]): item
        for item in made
    }  # fmt: skip


def overlay(folder: Path, *, gate: bool = True, monitoring: bool = False) -> Fleet:
    """By kustomize: five groups, three in a quorum."""
    path = new_overlay(folder, "pretrain", 5, 3) / "kustomization.yaml"
    parts = ["../gate"] * gate + ["../monitoring"] * monitoring
    listed = "".join(f"  - {part}\n" for part in parts)
    text = path.read_text().replace(
        "components:\n  - ../gate\n", f"components:\n{listed}" * bool(parts)
    )
    path.write_text(text)
    shutil.copytree(ROOT / "dashboards", folder / "dashboards")
    return render(path.parent)


@pytest.mark.skipif(kustomize() is None, reason="neither kustomize nor kubectl is here")
@pytest.mark.parametrize(
    ("gate", "monitoring"), [(True, False), (False, False), (True, True)],
    ids=["with a gate", "without", "with a Prometheus"],
)  # fmt: skip
def test_chart_and_kustomize_say_the_same_of_every_object(gate, monitoring, tmp_path):
    values: dict[str, Any] = {"job": {"groups": 5, "minReplicas": 3}, "gate": {"enabled": gate}}
    ours = chart(values | EVERYTHING if monitoring else values)
    by_chart = by_name(ours, "Secret")
    by_kustomize = by_name(
        overlay(tmp_path, gate=gate, monitoring=monitoring), "Job", "Namespace"
    )  # fmt: skip
    assert by_chart.keys() == by_kustomize.keys()
    for name, item in by_kustomize.items():
        assert by_chart[name] == item, name
    assert len(by_chart) >= 18


@pytest.mark.skipif(kustomize() is None, reason="neither kustomize nor kubectl is here")
def test_groups_beside_the_chart_are_those_that_kustomize_makes_with_all_the_rest(tmp_path):
    values = tmp_path / "values.env"
    values.write_text("CHART=1\n")
    alone = render(new_overlay(tmp_path, "groups", 5, 3, values))
    assert {item["kind"] for item in alone.objects} == {"Job"}
    assert list(alone.objects) == render(new_overlay(tmp_path, "whole", 5, 3)).all("Job")
    named = {
        reference["configMapRef"]["name"] for job in alone.objects
        for container in job["spec"]["template"]["spec"]["containers"]
        for reference in container["envFrom"]
    }  # fmt: skip
    fleet = chart()
    assert all(fleet.one("ConfigMap", name) for name in (*named, "launch"))
    assert fleet.one("Secret", "lightkeeper-token")


def test_it_is_linted_with_all_its_parts_and_with_none():
    for values in ({}, EVERYTHING, {"lighthouse": {"enabled": False}, "gate": {"enabled": False}}):
        done = call("lint", "--strict", CHART, values=values)
        assert done.returncode == 0, done.stdout


def test_no_object_of_it_is_or_holds_a_training_pod():
    kinds = {item["kind"] for item in chart(EVERYTHING).objects}
    assert not kinds & {"Namespace", "Job", "JobSet", "StatefulSet", "Pod", "DaemonSet"}


def test_an_upgrade_moves_the_lighthouse_only_for_its_own_image_and_place():
    def pod(**values: Any) -> Object:
        return chart(values).one("Deployment", "lighthouse")["spec"]["template"]

    assert pod() == pod(
        image={"tag": "9"}, monitor={"observe": False, "policy": "x"}, gate={"enabled": False},
        job={"minReplicas": 2, "groups": 9}, **EVERYTHING,
    )  # fmt: skip
    assert pod() != pod(lighthouse={"image": "train:2"})


def test_its_version_is_that_of_the_code():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (about["version"], about["appVersion"]) == (version, version)
    images = {
        container["image"] for pod in chart().pods() for container in pod["spec"]["containers"]
    }
    assert images == {f"registry.example/lightkeeper:{version}", "registry.example/train:1"}


@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_all_of_it_follows_kubernetes_own_schemas(version):
    validate = pytest.importorskip("kubernetes_validate")
    for item in chart({"monitor": {"policy": "a = 1"}, "dashboards": {"enabled": True}}).objects:
        validate.validate(item, version, strict=True)


# -- values ----------------------------------------------------------------------------------------


def paths(schema: dict[str, Any], at: str = "") -> Iterator[str]:
    """Dotted names of all values that a schema lists."""
    if "properties" not in schema:
        yield at
    for name, inner in schema.get("properties", {}).items():
        yield from paths(inner, f"{at}.{name}")


def leaves(value: Any, schema: dict[str, Any], at: str = "") -> Iterator[str]:
    if "properties" not in schema:
        yield at
        return
    for name, inner in value.items():
        yield from leaves(inner, schema["properties"][name], f"{at}.{name}")


def test_the_schema_lists_every_value_and_no_other():
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(leaves(values, schema)) == set(paths(schema)) - {".global"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"monitr": {}}, "monitr"),
        ({"monitor": {"obserf": True}}, "obserf"),
        ({"monitor": {"observe": "no"}}, "/monitor/observe"),
        ({"job": {"groups": 0}}, "/job/groups"),
        ({"job": {"namespace": "Train"}}, "/job/namespace"),
        ({"monitor": {"args": ["notify"]}}, "/monitor/args/0"),
        ({"rules": {"runbooksUrl": "wiki/runbooks"}}, "/rules/runbooksUrl"),
        ({"lighthouse": {"enabled": False}}, "gate.enabled needs lighthouse.enabled"),
    ],
    ids=["a part", "a value", "a word", "no group", "a name", "an option", "a page", "a gate"],
)  # fmt: skip
def test_a_wrong_value_is_refused_before_anything_is_installed(values, said):
    done = call("template", "lightkeeper", CHART, values=values)
    assert done.returncode == 1
    assert said in done.stderr


def test_the_token_is_one_in_both_namespaces_or_the_user_s():
    secrets = chart().all("Secret")
    assert {item["metadata"]["namespace"] for item in secrets} == {"lightkeeper", "train"}
    [token] = {base64.b64decode(item["data"]["token"]) for item in secrets}
    assert len(token) == 43  # and no line feed, which Prometheus would send
    assert token.isalnum()
    assert {item["metadata"]["annotations"]["helm.sh/resource-policy"] for item in secrets} == {
        "keep"
    }
    assert chart().all("Secret")[0]["data"] != secrets[0]["data"]
    own = chart({"token": {"create": False, "secret": "mine"}})
    assert own.all("Secret") == []
    assert dumped(own.objects).count("secretName: mine") == 2


def test_release_and_job_may_share_a_namespace():
    fleet = chart({"job": {"namespace": "lightkeeper"}} | EVERYTHING)
    names = [
        (item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"])
        for item in fleet.objects
    ]  # fmt: skip
    assert len(names) == len(set(names))


def test_two_releases_have_nothing_in_common():
    other = {"job": {"namespace": "other"}} | EVERYTHING
    pair = by_name(chart(EVERYTHING)).keys(), by_name(chart(other, name="second")).keys()
    assert pair[0] & pair[1] == set()
    assert len(pair[0]) == len(pair[1])


def monitor(fleet: Fleet) -> Object:
    [container] = fleet.one("Deployment", "lightkeeper", "lightkeeper")["spec"]["template"]["spec"][
        "containers"
    ]
    return container


def test_a_job_without_torchft_has_a_monitor_alone():
    fleet = chart({"lighthouse": {"enabled": False}, "gate": {"enabled": False}} | EVERYTHING)
    assert [item["metadata"]["name"] for item in fleet.all("Deployment")] == ["lightkeeper"]
    for namespace, name in (("train", "fleet"), ("lightkeeper", "lightkeeper")):
        data = fleet.one("ConfigMap", name, namespace)["data"]
        assert not {"TORCHFT_LIGHTHOUSE", "LIGHTKEEPER_GATE"} & set(data)
    names = {item["metadata"]["name"] for item in fleet.objects}
    assert not {name for name in names if name == "lighthouse" or name.endswith("gate")}
    assert "app: lighthouse" not in dumped(fleet.all("NetworkPolicy"))


def test_a_policy_in_the_values_is_one_that_the_monitor_can_use(tmp_path):
    policy = (ROOT / "examples/policy.toml").read_text()
    args = ["--notify-label=cluster=a", "--budget=2/hour"]
    values = {"monitor": {"policy": policy, "args": args, "observe": False}}
    fleet = chart(values)
    command, *words = monitor(fleet)["args"]
    assert command == "lightkeeper"
    params = parsed(*(word.replace("$(MIN_REPLICAS)", "1") for word in words)).params
    assert str(params["policy"]) == "/policy/policy.toml"
    assert not params["observe"]
    [mount] = [row for row in monitor(fleet)["volumeMounts"] if row["name"] == "policy"]
    assert mount["mountPath"] == "/policy"
    (tmp_path / "policy.toml").write_text(
        fleet.one("ConfigMap", "lightkeeper-policy", "lightkeeper")["data"]["policy.toml"]
    )
    effective(tmp_path / "policy.toml", {}, loaded_s=0.0)
    changed = chart({"monitor": {"policy": policy + "\n"}})
    assert annotations(changed) != annotations(fleet), "a new policy starts a new pod"


def annotations(fleet: Fleet) -> Object:
    return fleet.one("Deployment", "lightkeeper", "lightkeeper")["spec"]["template"]["metadata"][
        "annotations"
    ]


# -- one source ------------------------------------------------------------------------------------


def test_rules_lead_to_the_runbooks_and_bear_the_labels_of_the_site():
    own = {"enabled": True, "runbooksUrl": "https://wiki/lk", "labels": {"release": "kps"}}
    public = {"monitor": {"publicUrl": "https://keeper/"}, "rules": {"enabled": True}}
    for values, page in (({"rules": own}, "https://wiki/lk"), (public, "https://keeper/runbooks")):
        rule = chart(values).one("PrometheusRule", "lightkeeper", "lightkeeper")
        files = dict(committed.rule_files(None, page))
        groups = [
            group for name in ("rules.yml", "alerts.yml")
            for group in yaml.safe_load(files[name])["groups"]
        ]  # fmt: skip
        assert rule["spec"]["groups"] == groups
    assert chart({"rules": own}).one("PrometheusRule", "lightkeeper", "lightkeeper")["metadata"][
        "labels"
    ]["release"] == "kps"  # fmt: skip


def test_a_package_holds_the_dashboards_and_rules_themselves(tmp_path):
    done = call("package", CHART, "--destination", tmp_path)
    assert done.returncode == 0, done.stderr
    [package] = tmp_path.iterdir()
    with tarfile.open(package) as archive:
        files = {
            member.name.removeprefix("lightkeeper/files/"): archive.extractfile(member).read()
            for member in archive if "/files/" in member.name
        }  # fmt: skip
    assert files == {
        **{f"grafana/{path.name}": path.read_bytes() for path in committed.GRAFANA.glob("*.json")},
        **{f"prometheus/{name}": (ROOT / "dashboards/prometheus" / name).read_bytes()
           for name in ("rules.yml", "alerts.yml")},
        "launch/group.sh": (ROOT / "examples/launch/group.sh").read_bytes(),
    }  # fmt: skip
    assert package.stat().st_size < 700_000, "a release is a secret: at most a megabyte"
