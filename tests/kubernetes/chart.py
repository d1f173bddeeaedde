"""The Helm chart in the place of base/ and gate/, as docs/deploy.md says, by real helm."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import yaml

from experiments.harness import say
from tests.charts import helm
from tests.kubernetes import lab
from tests.kubernetes.lab import KEEPER, TRAIN, LabError, kubectl, until

RELEASE: Final = "lightkeeper"
SPACES: Final = ("train", "lightkeeper")
_OPERATOR: Final = "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring@v0.95.2"
_CONTROLLER_GEN: Final = "sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0"
_RENDERER: Final = """\
#!/bin/sh
cd "$(dirname "$0")" && cat > chart.yaml && exec {kubectl} kustomize .
"""


def values(groups: int, *, gate: bool) -> dict[str, Any]:
    """As a user's, to this lab's size."""
    repository, tag = KEEPER.split(":")
    small = {"requests": {"cpu": "200m"}}
    return {
        "image": {"repository": repository, "tag": tag},
        "job": {"name": "my-job", "groups": groups},
        "monitor": {"observe": False, "resources": {"requests": {"cpu": "300m"}}},
        "lighthouse": {"image": TRAIN, "resources": small},
        "gate": {"enabled": gate, "resources": small},
        "monitoring": {"enabled": True}, "rules": {"enabled": True},
        "dashboards": {"enabled": True},
    }  # fmt: skip


def renderer(folder: Path, lighthouse_patch: str) -> Path:
    """A program for `helm --post-renderer`: the Lighthouse gets the lab's libraries, which is no
    matter of the chart.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath("kustomization.yaml").write_text(
        f"resources: [chart.yaml]\npatches:\n{lighthouse_patch}"
    )
    program = folder / "render.sh"
    program.write_text(_RENDERER.format(kubectl=_kubectl()))
    program.chmod(0o755)
    return program


def _kubectl() -> Path | str:
    own = lab.FOLDER / "bin/kubectl"
    return own if own.exists() else "kubectl"


def call(*words: str | Path, limit_s: float = 120.0) -> str:
    """helm, as the administrator.

    Raises:
        LabError: it is not here, or failed.
    """
    program = helm.helm()
    if program is None:
        raise LabError(f"no helm on PATH or in {helm.WHERE}: {helm.__doc__}")
    environment = {**os.environ, "KUBECONFIG": str(lab.FOLDER / "run/admin.conf")}
    return lab.call(program, *words, limit_s=limit_s, env=environment)


def install(given: dict[str, Any], rendered_by: Path) -> None:
    """Or upgrade to these values; returns when helm has applied all of it."""
    file = rendered_by.with_name("values.yaml")
    file.write_text(yaml.safe_dump(given))
    call("upgrade", "--install", RELEASE, helm.CHART, "--namespace", RELEASE, "--create-namespace",
         "--values", file, "--post-renderer", rendered_by)  # fmt: skip


def taken() -> int:
    """How many objects the release has, each held against the API server's schemas, strictly.

    Raises:
        LabError: one of them is refused.
    """
    manifest = call("get", "manifest", RELEASE, "--namespace", RELEASE)
    said = kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", input=manifest)
    return len(said.splitlines())


def lighthouses() -> int:
    """How many pods of it there were: 1, as an upgrade must not move it."""
    history = kubectl("-n", "train", "get", "replicasets", "-l", "app=lighthouse", "-o", "name")
    return len(history.splitlines())


def operators_kinds() -> None:
    """The Prometheus operator's own kinds, made of its Go types: the API server then refuses an
    object with a field that they do not know.
    """
    folder = lab.FOLDER / "build/operator"
    made = folder / "crds"
    if not made.exists():
        say("the Prometheus operator's kinds")
        folder.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "GOFLAGS": "-buildvcs=false -mod=mod"}
        more: dict[str, Any] = {"cwd": folder, "env": environment, "limit_s": 1800.0}
        (folder / "go.mod").write_text("module lab.test/operator\n\ngo 1.26\n")
        module = _OPERATOR.partition("@")[0]
        lab.call("go", "get", "-tool", _CONTROLLER_GEN, **more)
        lab.call("go", "get", _OPERATOR, **more)
        types = f"paths={module}/v1;{module}/v1alpha1"
        lab.call("go", "tool", "controller-gen", "crd", types, f"output:crd:dir={made}", **more)
    for kind in ("servicemonitors", "podmonitors", "scrapeconfigs", "prometheusrules"):
        kubectl("apply", "--server-side", "-f", made / f"monitoring.coreos.com_{kind}.yaml")


def gone() -> None:
    """Nothing of a release or of kustomize's base is left: helm takes over no object of others."""
    if helm.helm() is not None:
        listed = call("list", "--namespace", RELEASE, "--short", "--all")
        if RELEASE in listed.split():
            call("uninstall", RELEASE, "--namespace", RELEASE)
    kubectl("delete", "namespace", *SPACES, "--ignore-not-found", "--wait=false")
    kubectl("delete", "clusterrole,clusterrolebinding", "lightkeeper-nodes", "--ignore-not-found")
    kubectl("delete", "role,rolebinding", "lightkeeper-leases", "--namespace", "kube-node-lease",
            "--ignore-not-found")  # fmt: skip
    kubectl("delete", "priorityclass", "lightkeeper-control", "--ignore-not-found")
    until("both namespaces are gone",
          lambda: not set(kubectl("get", "namespaces", "-o", "name").split())
          & {f"namespace/{name}" for name in SPACES}, 120)  # fmt: skip
