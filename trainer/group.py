"""A rank's place in the job, and how it joins the other ranks of its replica group."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from lightkeeper.worker_server.wire import rank_name


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The rank's place, from the environment that torchrun and the group's launcher set."""

    group: str
    group_rank: int
    world_size: int
    """Ranks in this replica group."""
    host: str
    address: str
    """Where other groups reach this group's manager: torchrun's rendezvous host."""
    device: torch.device

    @property
    def name(self) -> str:
        """Name of the rank in the job, such as `rg_1.0`."""
        return rank_name(self.group, self.group_rank)


def read_place(device: str) -> RankPlace:
    """The rank's place; a missing variable ends the process with one line."""
    missing = [
        name for name in ("RANK", "WORLD_SIZE", "TORCHFT_LIGHTHOUSE") if name not in os.environ
    ]
    if missing:
        sys.exit(
            f"trainer: {' and '.join(missing)} not set: start me under torchrun, with "
            "TORCHFT_LIGHTHOUSE=http://host:port (see python -m lightkeeper.trainer.train --help)"
        )
    meeting = os.environ.get("MASTER_ADDR", "")
    return RankPlace(
        group=os.environ.get("REPLICA_GROUP") or os.environ.get("REPLICA_GROUP_ID") or "job",
        group_rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        host=os.environ.get("LIGHTKEEPER_HOST") or socket.gethostname(),
        # torchrun on one machine says `localhost`, for which the manager may use only ::1.
        address="127.0.0.1" if meeting in ("", "localhost") else meeting,
        device=_device(device, int(os.environ.get("LOCAL_RANK", "0"))),
    )


def _device(wanted: str, local_rank: int) -> torch.device:
    if wanted == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        sys.exit("trainer: --device cuda: this torch sees no CUDA device (try --device cpu)")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


@dataclass(frozen=True, slots=True)
class Intra:
    """The ranks of one replica group: the mesh that FSDP2 shards over, and two process groups.

    Real jobs have several process groups over the same ranks, so this one does.
    """

    mesh: DeviceMesh
    norms: dist.ProcessGroup
    metrics: dist.ProcessGroup


def join_group(place: RankPlace, timeout_s: float) -> Intra | None:
    """Join the other ranks of this replica group; None when this rank is the whole group.

    `init_process_group` also starts the store in which TorchFT's Manager writes its address.
    """
    timeout = timedelta(seconds=timeout_s)
    backend = "gloo" if place.device.type == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=timeout)
    if place.world_size == 1:
        return None
    return Intra(
        mesh=init_device_mesh(place.device.type, (place.world_size,)),
        norms=dist.new_group(timeout=timeout, group_desc="intra"),
        metrics=dist.new_group(timeout=timeout, group_desc="metrics"),
    )
