"""Who this process is: rank of which group of which job, and on which node.

Theory of operation. Launchers nest: a Kubernetes pod or a Slurm step runs torchrun, which runs
ranks, and a rank sees the variables of all of them. The innermost launcher defines the rank,
because the outer ones started something else: under `sbatch` + `srun torchrun` SLURM_PROCID is the
number of the *launcher*, and `mpirun` in a Slurm job starts one daemon a node by srun. The outer
ones define what the inner ones do not know: the job and the node.

Which variables say what, and which wins: docs/integrations.md, "Who am I?".

The host is the node that quarantine names and that a scheduler can keep work off. A pod's name is
not a node: a new pod has a new one, so a quarantine would keep nobody out, and in a StatefulSet or
an Indexed Job the name stays while the node changes, so it would hit a healthy node. `pod:` shows
on every page that the node is unknown.
"""

from __future__ import annotations

import os
import re
import socket
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Final

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank.settings import SettingError, read_setting

_GROUP_NAME = re.compile(r"[^\s/\\<>\"':-][^\s/\\<>\"':]{0,127}")
POD = "pod:"
"""Prefix of a host that is no node: a pod that does not know where it runs."""


_READ_BYTES: Final = 256 * 1024

Read = Callable[[str], str]
"""The text of a small file; empty if it cannot be read."""


def read_file(path: str) -> str:
    """The beginning of a file; empty when it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return file.read(_READ_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return ""


@dataclass(frozen=True, slots=True)
class LauncherVariables:
    """A launcher's variables that give a process's rank."""

    name: str
    rank: str
    sizes: tuple[str, ...]
    only_with: str | None = None
    """A variable without which the rank's variable means something else."""

    def speaks(self, environ: Mapping[str, str]) -> bool:
        """True if this launcher started this process (or one that it descends from)."""
        return bool(environ.get(self.rank)) and (
            self.only_with is None or self.only_with in environ
        )


LAUNCHERS = (
    LauncherVariables("torchrun", "RANK", ("WORLD_SIZE",)),
    LauncherVariables("Open MPI", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
    LauncherVariables("MPI", "PMI_RANK", ("PMI_SIZE",)),
    LauncherVariables(
        "Slurm", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), "SLURM_STEP_ID"
    ),
    LauncherVariables("Kubernetes", "JOB_COMPLETION_INDEX", ("WORLD_SIZE",)),
)
"""Innermost first."""

_NO_RANKS = frozenset({
    "torchrun", "torch.distributed.run", "torch.distributed.launch", "torchx",
    "accelerate", "accelerate-launch", "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli", "deepspeed", "deepspeed.launcher.runner",
    "deepspeed.launcher.launch", "composer", "fabric", "lightning", "lightning.fabric.cli",
    "torchft_lighthouse", "torchft.lighthouse_cli", "ray",
})  # fmt: skip
"""Programs that import torch and run with a rank's environment, but are no ranks."""
_RAYS_WORKER: Final = "default_worker.py"
"""Ray's process for any task: it has the node's Slurm variables, and learns its rank later."""
_DAEMONS: Final = frozenset({"mpirun", "orted", "prted", "hydra_pmi_proxy", "slurmstepd"})
"""What starts the ranks of one host for `mpirun` and `srun`."""


def launcher_of(environ: Mapping[str, str]) -> LauncherVariables | None:
    """The launcher that says which rank this process is; None: no launcher made it one."""
    return next((launcher for launcher in LAUNCHERS if launcher.speaks(environ)), None)


def is_rank(environ: Mapping[str, str], command: Sequence[str]) -> bool:
    """True if a process with this environment and command line (`sys.orig_argv`) is a rank."""
    launched = launcher_of(environ) is not None and not starts_ranks(program_of(command))
    return launched and not is_rays(command)


def is_rays(command: Sequence[str]) -> bool:
    """True in a worker process of Ray, which may become a rank later."""
    return PurePath(program_of(command)).name == _RAYS_WORKER


def starts_ranks(program: str) -> bool:
    """True if a program or module (`/usr/bin/torchrun`, `torch.distributed.run`) is no rank."""
    return program in _NO_RANKS or PurePath(program).name in _NO_RANKS


def program_of(command: Sequence[str]) -> str:
    """The script or module of a python command line; empty when there is none."""
    words = iter(command[1:])
    for word in words:
        if not word.startswith("-") or word == "-":
            return word
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                next(words, "")
            continue
        for at, letter in enumerate(word[1:], 2):
            if letter in "mcWX":  # these take a value, attached or as the next word
                value = word[at:] or next(words, "")
                if letter in "mc":
                    return value if letter == "m" else ""
                break
    return ""


def identity_from(
    environ: Mapping[str, str],
    pid: int,
    incarnation: str,
    hostname: Callable[[], str] = socket.gethostname,
    read: Read = read_file,
) -> wire.Identity:
    """Who this process is, from the variables in the module's table.

    Raises:
        SettingError: a rank or a size is invalid.
    """
    rank, size = _place(environ)
    group = group_named_by(environ)
    return wire.Identity(
        job=_job(environ, grouped=group is not None),
        group=wire.GroupName(group or wire.UNNAMED),
        group_rank=rank,
        world_size=size,
        host=wire.Host(node_of(environ, hostname)),
        pid=pid,
        incarnation=incarnation,
        place=place_from(environ, hostname, read),
    )


def claim_from(environ: Mapping[str, str], secret: str) -> wire.Claim:
    """What only a rank of this launch can say of it, from these variables and its parent."""
    lighthouse = environ.get("TORCHFT_LIGHTHOUSE", "")[:256]
    return wire.Claim(secret, _launch(environ), _launcher(), _meeting(environ), lighthouse)


def _launch(environ: Mapping[str, str]) -> str:
    run = environ.get("TORCHELASTIC_RUN_ID", "")
    if named := environ.get("LIGHTKEEPER_RUN"):
        material = f"run:{named}"
    elif environ.get("SLURM_STEP_ID"):
        names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
        material = "slurm:" + ".".join(environ.get(name, "") for name in names)
    elif environ.get("PMIX_NAMESPACE"):  # of one mpirun
        material = f"pmix:{environ['PMIX_NAMESPACE']}"
    else:
        material = f"torchrun:{run}" if _is_uuid(run) else ""
    return material and wire.digest(material)


def _launcher() -> str:
    parent = os.getppid()
    words = [word for word in read_file(f"/proc/{parent}/cmdline").split("\0") if word]
    daemon = bool(words) and PurePath(words[0]).name.rstrip(":") in _DAEMONS
    if not daemon and not any(map(starts_ranks, (*words[:1], *words[1:2], program_of(words)))):
        return ""
    born = read_file(f"/proc/{parent}/stat").rpartition(")")[2].split()[19:20]
    return wire.digest(f"{socket.gethostname()} {parent} {born}")


def _meeting(environ: Mapping[str, str]) -> str:
    address = environ.get("MASTER_ADDR", "")
    if not address:
        return ""
    size = environ.get("LOCAL_WORLD_SIZE")
    alone = size is not None and size == environ.get("WORLD_SIZE")
    if alone or address in ("localhost", "127.0.0.1", "::1"):
        address = socket.gethostname()
    port, run = environ.get("MASTER_PORT", ""), environ.get("TORCHELASTIC_RUN_ID", "")
    return wire.digest(f"{address} {port} {run}")


def _place(environ: Mapping[str, str]) -> tuple[int, int]:
    launcher = launcher_of(environ)
    if launcher is None:
        # no RANK: rank 0 of WORLD_SIZE, or else of 1
        launcher = LAUNCHERS[0]
        environ = {"RANK": "0", "WORLD_SIZE": environ.get("WORLD_SIZE") or "1"}
    named = next((size for size in launcher.sizes if environ.get(size)), None)
    if named is None and launcher.name == "Kubernetes":
        raise SettingError(
            "JOB_COMPLETION_INDEX without WORLD_SIZE: set it to the Job's `completions`"
        )
    rank = read_setting(environ, launcher.rank, int)
    size = 1 if named is None else read_setting(environ, named, int)
    if not 0 <= rank < size:
        raise SettingError(f"{launcher.rank}={rank} is outside {named or launcher.sizes[0]}={size}")
    return rank, size


def _job(environ: Mapping[str, str], *, grouped: bool) -> str:
    named = environ.get("LIGHTKEEPER_JOB")
    if named:
        return named
    number = _slurm_job(environ, grouped=grouped)
    if number:
        return f"{environ.get('SLURM_JOB_NAME') or 'slurm'}-{number}"
    run = environ.get("TORCHELASTIC_RUN_ID", "none")
    # With one torchrun a replica group, its run id names the group's agents, not the job.
    return wire.UNNAMED if grouped or run in ("", "none") or _is_uuid(run) else run


def _slurm_job(environ: Mapping[str, str], *, grouped: bool) -> str | None:
    """The number that all ranks of the job share and no other job has."""
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    if array and task:  # tasks that are replica groups make one job, others are a sweep of jobs
        return array if grouped else f"{array}_{task}"
    whole = environ.get("SLURM_JOB_ID_HET_GROUP_0")  # each component has a number of its own
    return whole or environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")


def _is_uuid(text: str) -> bool:
    """True if `torchrun --standalone` made it up: new each time, so useless as a name."""
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def group_named_by(environ: Mapping[str, str]) -> str | None:
    """The replica group that these variables name; None if none does."""
    return environ.get("REPLICA_GROUP") or environ.get("REPLICA_GROUP_ID") or None


def name_in_replica_id(replica_id: str | None) -> wire.GroupName | None:
    """`my_0` of `my_0:<uuid>`; None if it is missing or cannot name a group.

    A Manager without a name has a uuid, a new one at each start.
    """
    name, _, rest = (replica_id or "").partition(":")
    usable = _GROUP_NAME.fullmatch(name) and name.isprintable() and not _is_uuid(name)
    return wire.GroupName(name) if usable and ":" not in rest else None


def under_managers_name(launched: wire.Identity, name: wire.GroupName | None) -> wire.Identity:
    """The identity under the name of its group's Manager; None: there is none."""
    if name is None or name == launched.group:
        return launched
    return replace(launched, group=name, launched_as=launched.group)


def node_of(environ: Mapping[str, str], hostname: Callable[[], str] = socket.gethostname) -> str:
    """The node that this process runs on, as quarantine and the scheduler name it."""
    for name in ("LIGHTKEEPER_HOST", "SLURMD_NODENAME", "K8S_NODE_NAME"):
        # Pods often set NODE_NAME too, but build systems use it for other things.
        node = environ.get(name)
        if node:
            return node
    return (POD if "KUBERNETES_SERVICE_HOST" in environ else "") + hostname()


# -- place -----------------------------------------------------------------------------------------
#
# Where a scheduler put this process: what names exactly this job, step or pod to it.
#
# Theory of operation. Everything comes from variables that the scheduler or the pod's manifest
# sets, and from two files that a pod has anyway. What is absent is left out: a place that names
# too little makes a scheduler refuse, one that names the wrong pod would make it kill a healthy
# group. For the same reason a value that is too long is left out and never cut.
# A pod's name is the host's unless the pod is on the node's network; its uid is also in the
# kubelet's path of a mount such as /etc/hosts.
#
# LIGHTKEEPER_PLACE=key=value,key=value adds what a custom scheduler needs (the webhook gets it),
# and overrides.

_BUDGET_BYTES: Final = 1024
"""The page has room for an identity of 1,792 bytes; each polled state carries it too."""
_NAMESPACE: Final = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_MOUNTS: Final = "/proc/self/mountinfo"
_POD_UID: Final = re.compile(
    r"/pods/([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})/"
)
_SLURM: Final = (
    ("slurm_job_id", "SLURM_JOB_ID"),
    ("slurm_step_id", "SLURM_STEP_ID"),
    ("slurm_node", "SLURMD_NODENAME"),
    ("slurm_restarts", "SLURM_RESTART_COUNT"),
)


def place_from(
    environ: Mapping[str, str], hostname: Callable[[], str], read: Read = read_file
) -> dict[str, str]:
    """The place of this process; empty where no scheduler is known."""
    place = {key: environ.get(name, "") for key, name in _SLURM if environ.get("SLURM_JOB_ID")}
    if "KUBERNETES_SERVICE_HOST" in environ or "POD_UID" in environ:
        place.update(_pod(environ, hostname, read))
    for pair in environ.get("LIGHTKEEPER_PLACE", "").split(","):
        key, equals, value = pair.partition("=")
        if equals:
            place[key.strip()] = value.strip()
    return _bounded(place)


def _pod(environ: Mapping[str, str], hostname: Callable[[], str], read: Read) -> dict[str, str]:
    uid = environ.get("POD_UID") or _uid(read(_MOUNTS))
    named = (environ.get(name) for name in ("K8S_NODE_NAME", "NODE_NAME", "LIGHTKEEPER_HOST"))
    node = next((name for name in named if name), "")
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
    """The uid in the kubelet's paths; none if they differ: all pods' folder is mounted."""
    uids = {match.group(1) for match in _POD_UID.finditer(mounts)}
    return uids.pop() if len(uids) == 1 else ""


def _bounded(place: Mapping[str, str]) -> dict[str, str]:
    bounded: dict[str, str] = {}
    room = _BUDGET_BYTES
    for key, value in place.items():
        fits = 0 < len(key) <= wire.PLACE_KEY_MAX_CHARS
        fits = fits and 0 < len(value) <= wire.PLACE_VALUE_MAX_CHARS
        size = len(key) + len(value) + 6
        plain = key.isascii() and value.isascii() and (key + value).isprintable()
        if fits and plain and size <= room and len(bounded) < wire.PLACE_KEYS_MAX:
            bounded[key] = value
            room -= size
    return bounded
