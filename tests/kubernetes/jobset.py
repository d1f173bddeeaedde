"""Groups by extras/jobset.yaml, of a node or two, and the real JobSet controller by its module."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any, Final

import yaml

from experiments.harness import say
from tests.kubernetes import lab
from tests.kubernetes.lab import TRAIN, kubectl

VERSION: Final = "v0.10.1"
RANKS: Final = 2
_IMAGE: Final = f"us-central1-docker.pkg.dev/k8s-staging-images/jobset/jobset:{VERSION}"
_DOCKERFILE: Final = """\
FROM scratch
COPY jobset /manager
USER 65532:65532
ENTRYPOINT ["/manager"]
"""


def install() -> None:
    """The controller, as its own manifests say; the API server reaches its webhooks by a node."""
    binary, build = lab.FOLDER / "bin/jobset", lab.FOLDER / "build/jobset"
    build.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "GOFLAGS": "-buildvcs=false -mod=mod", "CGO_ENABLED": "0"}
    if not (build / "go.mod").exists():
        (build / "go.mod").write_text("module lab.test/jobset\n\ngo 1.26\n")
    more: dict[str, Any] = {"cwd": build, "env": environment, "limit_s": 1800.0}
    if not binary.exists():
        say("building the JobSet controller")
        lab.call("go", "get", "-tool", f"sigs.k8s.io/jobset@{VERSION}", **more)
        lab.call("go", "build", "-ldflags=-s -w", "-o", binary, "sigs.k8s.io/jobset", **more)
    if not lab.call("docker", "images", "-q", _IMAGE):
        folder = build / "image"
        folder.mkdir(exist_ok=True)
        shutil.copy(binary, folder / "jobset")
        (folder / "Dockerfile").write_text(_DOCKERFILE)
        lab.build(_IMAGE, folder)
    lab.script("load", _IMAGE)
    source = Path(
        lab.call("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/jobset", **more).strip()
    )
    lab.call("ip", "route", "replace", "10.96.0.0/16", "via", "172.30.0.11")
    kubectl("apply", "--server-side", "-k", source / "config/default")
    kubectl("-n", "jobset-system", "rollout", "status", "deploy/jobset-controller-manager",
            "--timeout=120s", limit_s=130)  # fmt: skip


def groups(names: tuple[str, ...], train: str, nodes: int) -> str:
    """extras/jobset.yaml for each group, edited as its first lines say, and to this lab's size;
    `train`: what torchrun runs. Pure but for the file that it reads.
    """
    text = (lab.ROOT / "examples/kubernetes/extras/jobset.yaml").read_text()
    return "---\n".join(_group(yaml.safe_load(text), name, train, nodes) for name in names)


def _group(body: dict[str, Any], group: str, train: str, nodes: int) -> str:
    name = group.replace("_", "-")
    body = yaml.safe_load(
        re.sub(r"\brg-0\b", name, re.sub(r"\brg_0\b", group, yaml.safe_dump(body)))
    )
    job = body["spec"]["replicatedJobs"][0]["template"]["spec"]
    job["completions"] = job["parallelism"] = nodes
    pod = job["template"]["spec"]
    container = pod["containers"][0]
    container["image"] = TRAIN
    words = [word for word in container["command"] if not word.startswith("--steps")]
    words = words[: words.index("-m")]
    changes = {"--nnodes": str(nodes), "--nproc-per-node": str(RANKS // nodes)}
    container["command"] = [_changed(word, changes) for word in words] + train.split()
    container["resources"] = {
        "requests": {"cpu": f"{1100 // nodes}m", "memory": "2Gi"}, "limits": {"memory": "3Gi"},
    }  # fmt: skip
    next(row for row in pod["volumes"] if row["name"] == "shm")["emptyDir"]["sizeLimit"] = "256Mi"
    for claim, read_only in (("libraries", True), ("checkpoints", False)):
        reference = {"claimName": claim, "readOnly": read_only}
        pod["volumes"].append({"name": claim, "persistentVolumeClaim": reference})
        mount = {"name": claim, "mountPath": f"/{claim}", "readOnly": read_only}
        container["volumeMounts"].append(mount)
    return yaml.safe_dump(body, sort_keys=False)


def _changed(word: str, changes: dict[str, str]) -> str:
    name, sign, _ = word.partition("=")
    return f"{name}={changes[name]}" if sign and name in changes else word
