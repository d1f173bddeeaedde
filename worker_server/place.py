"""Where a scheduler put this process: what it takes to name exactly this job, step or pod to it.

Theory of operation. Everything comes from variables that the scheduler or the pod's manifest sets,
and from two files that a pod has anyway. What is absent is left out: a place that names too little
makes a scheduler refuse, one that names the wrong pod would make it kill a healthy group. For the
same reason a value that is too long is left out and never cut.

    slurm_job_id        SLURM_JOB_ID
    slurm_step_id       SLURM_STEP_ID, inside of srun only: a batch script is no step
    slurm_node          SLURMD_NODENAME
    slurm_restarts      SLURM_RESTART_COUNT: a requeued job keeps its number
    pod                 POD_NAME; else, in a pod, the host's name (unless it has the node's network)
    namespace           POD_NAMESPACE; else, in a pod, the service account's file
    pod_uid             POD_UID; else, in a pod, the kubelet's path of a mount such as /etc/hosts
    node                in a pod: K8S_NODE_NAME, NODE_NAME, LIGHTKEEPER_HOST

LIGHTKEEPER_PLACE=key=value,key=value adds what a scheduler of one's own needs (the webhook gets
it), and overrides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from worker_server.wire import PLACE_KEY_MAX_CHARS, PLACE_KEYS_MAX, PLACE_VALUE_MAX_CHARS

_BUDGET_BYTES: Final = 1024
"""Of the page's room for the identity, 1,792 bytes; a state that is polled carries it as well."""
_NAMESPACE: Final = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_MOUNTS: Final = "/proc/self/mountinfo"
_READ_BYTES: Final = 256 * 1024
_POD_UID: Final = re.compile(
    r"/pods/([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})/"
)
_SLURM: Final = (
    ("slurm_job_id", "SLURM_JOB_ID"),
    ("slurm_step_id", "SLURM_STEP_ID"),
    ("slurm_node", "SLURMD_NODENAME"),
    ("slurm_restarts", "SLURM_RESTART_COUNT"),
)

Read = Callable[[str], str]
"""The text of a small file; empty when it cannot be had."""


def read_file(path: str) -> str:
    """The beginning of a file; empty when it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return file.read(_READ_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def place_from(
    environ: Mapping[str, str], hostname: Callable[[], str], read: Read = read_file
) -> dict[str, str]:
    """The place of this process; empty where no scheduler is known."""
    found = {key: environ.get(name, "") for key, name in _SLURM if environ.get("SLURM_JOB_ID")}
    if "KUBERNETES_SERVICE_HOST" in environ or "POD_UID" in environ:
        found.update(_pod(environ, hostname, read))
    for pair in environ.get("LIGHTKEEPER_PLACE", "").split(","):
        key, equals, value = pair.partition("=")
        if equals:
            found[key.strip()] = value.strip()
    return _bounded(found)


def _pod(environ: Mapping[str, str], hostname: Callable[[], str], read: Read) -> dict[str, str]:
    uid = environ.get("POD_UID") or _uid(read(_MOUNTS))
    named = (environ.get(one) for one in ("K8S_NODE_NAME", "NODE_NAME", "LIGHTKEEPER_HOST"))
    node = next((one for one in named if one), "")
    name = environ.get("POD_NAME") or hostname()
    if not environ.get("POD_NAME") and name == node:
        name = ""  # the pod has the node's network, and its name
    return {
        "pod": name,
        "namespace": environ.get("POD_NAMESPACE") or read(_NAMESPACE).strip(),
        "pod_uid": uid,
        "node": node,
    }


def _uid(mounts: str) -> str:
    """The uid in the kubelet's paths, if all of them agree: a pod that mounts the folder of all
    pods sees many.
    """
    found = {match.group(1) for match in _POD_UID.finditer(mounts)}
    return found.pop() if len(found) == 1 else ""


def _bounded(found: Mapping[str, str]) -> dict[str, str]:
    kept: dict[str, str] = {}
    room = _BUDGET_BYTES
    for key, value in found.items():
        fits = 0 < len(key) <= PLACE_KEY_MAX_CHARS and 0 < len(value) <= PLACE_VALUE_MAX_CHARS
        size = len(key) + len(value) + 6
        plain = key.isascii() and value.isascii() and (key + value).isprintable()
        if fits and plain and size <= room and len(kept) < PLACE_KEYS_MAX:
            kept[key] = value
            room -= size
    return kept
