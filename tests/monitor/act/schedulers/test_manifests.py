"""examples/kubernetes: valid, and it grants exactly what the driver asks for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from lightkeeper.monitor.act.schedulers.base import Lost
from lightkeeper.monitor.act.schedulers.kubernetes import KubeOptions
from tests.monitor.act.schedulers.conformance import NODE, OWNER, RG_1, SOON_S, WHY
from tests.monitor.act.schedulers.kube_world import NAMESPACE

pytestmark = pytest.mark.integration  # a server on loopback
FOLDER = Path(__file__).parents[4] / "examples" / "kubernetes"
NOT_KUBERNETES = {"kustomization.yaml", "jobset.yaml", "monitors.yaml", "rules.yaml"}
"""Of others' kinds: see tests/examples."""
FILES = [path for path in sorted(FOLDER.rglob("*.yaml")) if path.name not in NOT_KUBERNETES]
RBAC, PRIMUS = "base/rbac.yaml", "extras/primus-safe.yaml"


def documents(*names):
    for name in names:
        yield from yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8"))


def granted(*names):
    """(namespace or empty, resource, verb) that the service account gets."""
    manifests = list(documents(*names))
    roles = {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in manifests}
    rules = set()
    for binding in manifests:
        if not binding["kind"].endswith("RoleBinding"):
            continue
        assert [(subject["kind"], subject["name"]) for subject in binding["subjects"]] == [
            ("ServiceAccount", "lightkeeper")
        ]
        role = roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
        namespace = binding["metadata"].get("namespace", "")
        assert role["metadata"].get("namespace", "") == namespace
        for rule in role["rules"]:
            of_leases = rule["resources"] == ["leases"]
            assert rule["apiGroups"] == (["coordination.k8s.io"] if of_leases else [""])
            rules |= {
                (namespace, each, verb) for each in rule["resources"] for verb in rule["verbs"]
            }
    return rules


def under(kube, rules):
    kube.allow = lambda verb, resource, namespace: (namespace, resource, verb) in rules


def exercise(world, scheduler):
    """Everything that the driver does."""
    place = world.start("rg_1.0", NODE)
    nameless = world.start("rg_2.0", NODE)
    del nameless.labels["pod"]
    assert list(scheduler.testimonies({NODE}, SOON_S)) == []
    outcomes = [
        scheduler.cordon(NODE, WHY, SOON_S),
        scheduler.uncordon(NODE, "released", SOON_S),
        scheduler.remove(RG_1, [place], WHY, SOON_S),
        scheduler.remove("rg_2", [nameless], WHY, SOON_S),
    ]
    world.kube.lingering = True
    gone = world.start("rg_3.0", NODE)
    assert [said.code for _, said in scheduler.ends([gone], SOON_S)] == ["runs"]
    world.kube.set_ready(NODE, "Unknown")
    assert [said.code for _, said in scheduler.ends([gone], SOON_S)] == ["node-lost"]
    fence = Lost(lambda: True, lambda host: None)
    outcomes += [scheduler.remove("rg_3", [gone], replace(WHY, lost=fence), SOON_S)]
    assert all(outcome.done for outcome in outcomes), outcomes
    assert scheduler.cordoned(SOON_S) is not None
    kinds = {"create"}
    return {
        (request.namespace, request.resource, request.verb)
        for request in world.kube.requests
        if request.verb not in kinds
    }


@pytest.mark.parametrize("files", [[RBAC], [RBAC, PRIMUS]], ids=["plain", "Primus-SaFE"])
def test_the_manifests_grant_what_is_asked_for_and_nothing_more(kube_world, files):
    rules, primus = granted(*files), "901" if PRIMUS in files else None
    under(kube_world.kube, rules)
    scheduler = kube_world.made(options=KubeOptions(primus_safe=primus))
    assert exercise(kube_world, scheduler) == rules
    assert (("", "nodes/status", "patch") in rules) is (primus is not None)


def test_without_that_rule_it_is_said_and_the_cordon_stands(kube_world):
    under(kube_world.kube, granted(RBAC))
    primus = kube_world.made(options=KubeOptions(primus_safe="901"))
    said = primus.cordon(NODE, WHY, SOON_S)
    assert not said.done
    assert "nodes/status is forbidden" in said.detail
    assert not kube_world.admits(NODE)
    assert list(primus.cordoned(SOON_S)) == [NODE]


def test_the_check_asks_for_exactly_these_rules(kube_world):
    rules = granted(RBAC, PRIMUS)
    under(kube_world.kube, rules)
    kube_world.start("rg_1.0", NODE)
    primus = kube_world.made(OWNER, KubeOptions(primus_safe="901"))
    assert [check for check in primus.checks(SOON_S) if not check.ok] == []
    asked = {
        (
            rule.get("namespace", ""),
            rule["resource"] + (f"/{rule['subresource']}" if "subresource" in rule else ""),
            rule["verb"],
        )
        for request in kube_world.kube.requests
        for rule in [request.body["spec"]["resourceAttributes"]]
    }
    assert asked == rules
    under(kube_world.kube, rules - {(NAMESPACE, "pods", "delete")})
    failed = [check for check in primus.checks(SOON_S) if not check.ok]
    assert [check.what for check in failed] == ["may delete pods in train"]


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(FOLDER)) for path in FILES])
def test_a_manifest_follows_kubernetes_own_schema(path):
    validate = pytest.importorskip("kubernetes_validate")
    for manifest in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        validate.validate(manifest, "1.31", strict=True)
