"""A real Kubernetes on this machine, by ../shared/lab/kubernetes/lab.sh: its faults and its API."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import requests
import yaml

from experiments.harness import say

ROOT: Final = Path(__file__).parents[2]
SCRIPT: Final = Path(os.environ.get("LAB_SCRIPT", ROOT.parent / "shared/lab/kubernetes/lab.sh"))
FOLDER: Final = Path(os.environ.get("LAB", "/var/tmp/kube-lab"))
NODES: Final = ("node-a", "node-b", "node-c")
BINARIES: Final = (
    "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy",
    "kubectl", "etcd", "coredns",
)  # fmt: skip
KEEPER: Final = "lightkeeper:0.2.0"
TRAIN: Final = "train:1"
MARK: Final = "lightkeeper.dev/quarantine"
_SERVER: Final = "https://172.30.0.1:6443"
_TRAIN_IMAGE: Final = """\
FROM python:3.13.9-slim-bookworm
ENV LD_LIBRARY_PATH=/opt/python/lib
ADD python.tar /opt/
COPY *.whl /wheels/
RUN /opt/python/bin/python3 -m pip install --no-cache-dir --no-deps --no-index /wheels/*.whl
COPY torchrun torchft_lighthouse /opt/python/bin/
COPY libraries.pth /opt/python/lib/python{version}/site-packages/
ENV PATH=/opt/python/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
USER 10001:10001
"""
_PROGRAM: Final = "#!/opt/python/bin/python3\nimport sys\nfrom {0} import {1}\nsys.exit({1}())\n"
_PROGRAMS: Final = {
    "torchrun": ("torch.distributed.run", "main"),
    "torchft_lighthouse": ("torchft._torchft", "lighthouse_main"),
}


class LabError(RuntimeError):
    """The lab cannot do it; the message says what broke."""


def why_not() -> list[str]:
    """What is missing here for a lab; empty: nothing."""
    built = all((FOLDER / "bin" / name).exists() for name in BINARIES)
    wants = {
        "root": os.geteuid() == 0,
        f"the script that makes the cluster ({SCRIPT}; LAB_SCRIPT names another)": SCRIPT.exists(),
        "go (Go 1.26, to build Kubernetes once)": built or bool(shutil.which("go")),
        "dockerd, or apt-get to install it": any(map(shutil.which, ("dockerd", "apt-get"))),
        "debootstrap, or apt-get to install it": any(map(shutil.which, ("debootstrap", "apt-get"))),
        "openssl": bool(shutil.which("openssl")),
        "iproute2 (ip)": bool(shutil.which("ip")),
    }
    return [what for what, there in wants.items() if not there]


def call(*command: str | Path, limit_s: float = 120.0, check: bool = True, **more: Any) -> str:
    """The output of a command.

    Raises:
        LabError: it failed, or took longer than `limit_s`.
    """
    options = {"capture_output": True, "text": True, "timeout": limit_s, **more}
    try:
        done = subprocess.run([str(word) for word in command], check=False, **options)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise LabError(f"{command[0]}: {exc}") from exc
    if check and done.returncode:
        words = " ".join(str(word) for word in command[:6])
        raise LabError(f"{words}: status {done.returncode}: {(done.stderr or done.stdout)[-600:]}")
    return str(done.stdout)


def script(*words: str, limit_s: float = 300.0) -> str:
    """lab.sh with these words."""
    environment = {**os.environ, "LAB": str(FOLDER), "GOFLAGS": "-buildvcs=false"}
    return call("sh", SCRIPT, *words, limit_s=limit_s, env=environment)


def kubectl(*words: str | Path, limit_s: float = 120.0, check: bool = True, **more: Any) -> str:
    """As the administrator."""
    config = FOLDER / "run/admin.conf"
    return call(FOLDER / "bin/kubectl", f"--kubeconfig={config}", *words, limit_s=limit_s,
                check=check, **more)  # fmt: skip


class Api:
    """Plain looks at the API server, which cost less than a kubectl each."""

    def __init__(self) -> None:
        self._session = requests.Session()
        self._session.trust_env = False
        keys = FOLDER / "pki"
        self._session.cert = (str(keys / "admin.crt"), str(keys / "admin.key"))
        self._session.verify = str(keys / "ca.crt")

    def get(self, path: str) -> dict[str, Any]:
        """JSON of a path. Raises requests.RequestException, ValueError."""
        answer = self._session.get(f"{_SERVER}{path}", timeout=3)
        answer.raise_for_status()
        return dict(answer.json())

    def pods(self, namespace: str) -> list[dict[str, Any]]:
        """As they are now."""
        return list(self.get(f"/api/v1/namespaces/{namespace}/pods")["items"])

    def nodes(self) -> list[dict[str, Any]]:
        """As they are now."""
        return list(self.get("/api/v1/nodes")["items"])


def until(what: str, asked: Callable[[], Any], limit_s: float, look_s: float = 0.5) -> Any:
    """The first true answer.

    Raises:
        LabError: none came within `limit_s`.
    """
    deadline, last = time.monotonic() + limit_s, ""
    while time.monotonic() < deadline:
        try:
            if answer := asked():
                return answer
        except (LabError, requests.RequestException, ValueError, KeyError) as exc:
            last = f" ({exc})"
        time.sleep(look_s)
    raise LabError(f"not within {limit_s:.0f} s: {what}{last}")


# -- up and down ---------------------------------------------------------------------------------


def up() -> None:
    """Binaries, docker, base image, control plane, nodes, volumes, images. What is there stays."""
    if not all((FOLDER / "bin" / name).exists() for name in BINARIES):
        say("building Kubernetes from Go modules: 7 minutes on two cores")
        script("build", limit_s=3600)
    script("docker", limit_s=600)
    if not call("docker", "images", "-q", "kube-node:1"):
        say("the base image")
        script("base", limit_s=1800)
    if not running():
        say("control plane and nodes")
        script("down")
        script("up")
        script("nodes")
    until("all nodes Ready", lambda: len(ready()) == len(NODES), 120)
    images()


def running() -> bool:
    """Whether the cluster answers."""
    try:
        return len(Api().nodes()) == len(NODES)
    except (requests.RequestException, ValueError, OSError):
        return False


def ready() -> list[str]:
    """Nodes whose kubelet says so."""
    return [
        node["metadata"]["name"] for node in Api().nodes() if condition(node, "Ready") == "True"
    ]


def condition(body: dict[str, Any], kind: str) -> str:
    """Status of a condition of a pod or node; empty without it."""
    rows = body["status"].get("conditions") or ()
    return next((str(row["status"]) for row in rows if row["type"] == kind), "")


def down() -> None:
    """The cluster ends, and its disk is free but for the binaries."""
    script("down")
    for volume in (f"{node}-images" for node in NODES):
        call("docker", "volume", "rm", volume, check=False)
    for name in ("libraries", "volumes", "examples", "loaded.json", "job.json", "release"):
        path = FOLDER / name
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


# -- images ----------------------------------------------------------------------------------------


def images() -> None:
    """Both images, built as docs/deploy.md says where it says so, and in every node."""
    libraries()
    say("images")
    keeper_image()
    train_image()
    loaded = FOLDER / "loaded.json"
    there = json.loads(loaded.read_text()) if loaded.exists() else {}
    now = {
        name: call("docker", "images", "-q", "--no-trunc", name).strip() for name in (KEEPER, TRAIN)
    }
    new = [name for name, identity in now.items() if there.get(name) != identity]
    if new:
        say(f"into every node: {', '.join(new)}")
        script("load", *new, limit_s=1800)
        loaded.write_text(json.dumps(now))
        (FOLDER / "job.json").unlink(missing_ok=True)


def build(image: str, folder: Path) -> None:
    """An image out of a folder with a Dockerfile."""
    context = subprocess.run(["tar", "-C", folder, "-c", "."], check=True, capture_output=True)
    _build(image, "Dockerfile", context.stdout)


def _build(image: str, dockerfile: str, context: bytes) -> None:
    environment = {**os.environ, "DOCKER_BUILDKIT": "0"}  # Debian's docker has no buildx
    call("docker", "build", "--network", "host", "-t", image, "-f", dockerfile, "-",
         limit_s=1800, env=environment, input=context, text=False)  # fmt: skip


def keeper_image() -> None:
    """From examples/container, out of the files of the tree that git does not ignore."""
    names = subprocess.run(["git", "-C", ROOT, "ls-files", "-zco", "--exclude-standard"],
                           check=True, capture_output=True).stdout  # fmt: skip
    there = b"\0".join(name for name in {*names.split(b"\0")}
                       if name and os.path.lexists(ROOT / os.fsdecode(name)))  # fmt: skip
    context = subprocess.run(["tar", "-C", ROOT, "--null", "-T", "-", "-c"],
                             check=True, capture_output=True, input=there).stdout  # fmt: skip
    _build(KEEPER, "examples/container/Dockerfile", context)


def train_image() -> None:
    """Python and lightkeeper; torch and the rest come from the volume that `libraries` fills."""
    folder = FOLDER / "build/train"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    prefix, names = Path(sys.base_prefix), [f"bin/python{version}", f"lib/python{version}"]
    names += [f"lib/{path.name}" for path in prefix.glob(f"lib/libpython{version}.so*")]
    skipped = [f"--exclude=lib/python{version}/{name}" for name in ("test", "idlelib", "config-*")]
    names.append("bin/python3")  # a link
    call("tar", "-C", prefix, "--transform", "s,^,python/,S", *skipped, "--exclude=*.a",
         "--exclude=__pycache__", "-cf", folder / "python.tar", *names)  # fmt: skip
    for source in (ROOT, ROOT / "trainer"):
        call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
             "-w", folder, source, limit_s=300)  # fmt: skip
    for name, place in _PROGRAMS.items():
        (folder / name).write_text(_PROGRAM.format(*place))
        (folder / name).chmod(0o755)
    (folder / "libraries.pth").write_text("/libraries\n")
    (folder / "Dockerfile").write_text(_TRAIN_IMAGE.format(version=version))
    build(TRAIN, folder)


def libraries() -> None:
    """This environment's packages, ours left out, for a read-only volume of the ranks' pods: links
    to the same files where that is possible, so that all nodes share them on disk and in memory.
    """
    import torch

    target, source = FOLDER / "libraries", Path(torch.__file__).parents[1]
    if target.exists():
        return
    say(f"the ranks' libraries: {source}")
    try:
        call("cp", "-al", f"{source}/.", target, limit_s=600)
    except LabError:  # on another disk
        shutil.rmtree(target, ignore_errors=True)
        call("cp", "-a", f"{source}/.", target, limit_s=1800)
    for path in (*target.glob("_editable_impl_lightkeeper*"), *target.glob("lightkeeper-*")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


# -- faults ----------------------------------------------------------------------------------------


def freeze(node: str) -> None:
    """Its kubelet and its pods: a dead host."""
    script("freeze", node)


def thaw(node: str) -> None:
    """The end of it."""
    script("thaw", node)


def cut(node: str) -> None:
    """Off the network, with all that runs on it."""
    call("docker", "network", "disconnect", "kube", node)


def join(node: str) -> None:
    """On the network again, with its address and its ways to the others' pods."""
    number = NODES.index(node) + 1
    call("docker", "network", "connect", "--ip", f"172.30.0.1{number}", "kube", node)
    for other in range(1, len(NODES) + 1):
        if other != number:
            call("docker", "exec", node, "ip", "route", "replace", f"10.244.{other}.0/24",
                 "via", f"172.30.0.1{other}")  # fmt: skip
    call("ip", "route", "replace", f"10.244.{number}.0/24", "via", f"172.30.0.1{number}")


def signal_kubelet(node: str, name: str) -> None:
    """STOP or CONT; its pods run on."""
    call("docker", "exec", node, "pkill", f"-{name}", "-x", "kubelet")


def available_memory(node: str) -> int:
    """Bytes that its kubelet holds to be free."""
    summary = kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/stats/summary")
    return int(json.loads(summary)["node"]["memory"]["availableBytes"])


_SECOND_PORT: Final = 10251


def _kubelet_port(node: str) -> int:
    body = Api().get(f"/api/v1/nodes/{node}")
    return int(body["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"])


@contextlib.contextmanager
def evicting_below(node: str, free_bytes: int) -> Iterator[None]:
    """A kubelet with this hard threshold of memory in the place of the node's own, which is stopped
    meanwhile: the node's container ends with its own kubelet.
    """
    folder = FOLDER / "run" / node
    own = yaml.safe_load((folder / "kubelet.yaml").read_text())
    own["evictionHard"]["memory.available"] = str(free_bytes)
    own |= {"port": _SECOND_PORT, "healthzPort": 0, "evictionPressureTransitionPeriod": "30s"}
    (folder / "pressed.yaml").write_text(yaml.safe_dump(own))
    last = (folder / "start.sh").read_text().splitlines()[-1]
    signal_kubelet(node, "STOP")
    call("docker", "exec", "-d", node, "bash", "-c",
         "echo $$ > /run/pressed.pid; " + last.replace("kubelet.yaml", "pressed.yaml"))  # fmt: skip
    try:
        until("the other kubelet is there", lambda: _kubelet_port(node) == _SECOND_PORT, 60)
        yield
    finally:
        call("docker", "exec", node, "bash", "-c", "kill $(cat /run/pressed.pid)", check=False)
        signal_kubelet(node, "CONT")


def signal_api(number: signal.Signals) -> None:
    """SIGSTOP or SIGCONT to the API server."""
    os.kill(int((FOLDER / "run/apiserver.pid").read_text()), number)


def task(pod: dict[str, Any], container: str, *words: str) -> None:
    """containerd's word on a pod's container: `kill -s SIGKILL`, `pause`, `resume`."""
    rows = pod["status"]["containerStatuses"]
    [identity] = [row["containerID"] for row in rows if row["name"] == container]
    call("docker", "exec", pod["spec"]["nodeName"], "ctr", "-n", "k8s.io", "task", *words,
         identity.removeprefix("containerd://"))  # fmt: skip
