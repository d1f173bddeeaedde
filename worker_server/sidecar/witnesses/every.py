"""Every witness of a host, in the order in which they are listed."""

from __future__ import annotations

from lightkeeper.worker_server.sidecar.witnesses.amd import Amd
from lightkeeper.worker_server.sidecar.witnesses.cgroup import Cgroup
from lightkeeper.worker_server.sidecar.witnesses.disks import Disks
from lightkeeper.worker_server.sidecar.witnesses.hardware import Pcie, cpu, edac, kernel
from lightkeeper.worker_server.sidecar.witnesses.network import Network
from lightkeeper.worker_server.sidecar.witnesses.nvidia import Nvidia
from lightkeeper.worker_server.sidecar.witnesses.pressure import Pressure
from lightkeeper.worker_server.sidecar.witnesses.ras import Ras
from lightkeeper.worker_server.sidecar.witnesses.witness import Witness


def witnesses() -> tuple[Witness, ...]:
    """New ones; none has looked yet."""
    return (
        edac(), cpu(), kernel(), Pcie(), Cgroup(), Pressure(), Disks(), Network(), Nvidia(), Amd(),
        Ras(),
    )  # fmt: skip
