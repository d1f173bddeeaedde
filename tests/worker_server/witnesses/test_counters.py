"""The witnesses of the hardware's counters and of network interfaces, against fake trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkeeper.worker_server.sidecar.witnesses.hardware import Counters, NetworkWitness
from lightkeeper.worker_server.sidecar.witnesses.panel import witnesses
from lightkeeper.worker_server.sidecar.witnesses.witness import CannotReadError, MachineWitness
from lightkeeper.worker_server.wire import Weight
from tests.worker_server.witnesses.trees import Case, Files, check, follow

BROKEN, SLOW, CONTEXT = Weight.BROKEN, Weight.SLOW, Weight.CONTEXT
MC = "sys/devices/system/edac/mc/mc0"
CPU = "sys/devices/system/cpu"
PCI = "sys/bus/pci/devices/0000"
KERNEL = {"proc/sys/kernel/hung_task_detect_count": "4", "sys/kernel/oops_count": "0"}


def heat(cpu: int, package: int, core: int, siblings: str) -> dict[str, str | None]:
    folder = f"{CPU}/cpu{cpu}"
    return {
        f"{folder}/thermal_throttle/package_throttle_count": str(package),
        f"{folder}/thermal_throttle/core_throttle_count": str(core),
        f"{folder}/topology/core_siblings_list": "0-3",
        f"{folder}/topology/thread_siblings_list": siblings,
    }


def card(bus: str, width: int, kind: str = "0x030200", most: int = 16) -> dict[str, str | None]:
    folder = f"{PCI}:{bus}:00.0"
    return {
        f"{folder}/class": kind, f"{folder}/vendor": "0x10de", f"{folder}/device": "0x2330",
        f"{folder}/current_link_width": str(width), f"{folder}/max_link_width": str(most),
    }  # fmt: skip


def aer(fatal: int, nonfatal: int) -> dict[str, str | None]:
    return {
        f"{PCI}:81:00.0/aer_dev_fatal": f"Undefined 0\nDLP {fatal}\nTOTAL_ERR_FATAL {fatal}",
        f"{PCI}:81:00.0/aer_dev_nonfatal": f"DLP 0\nTOTAL_ERR_NONFATAL {nonfatal}",
    }


def link(
    name: str, changes: int = 1, errors: int = 0, state: str = "up", *, real: bool = True
) -> dict[str, str | None]:
    folder = f"sys/class/net/{name}"
    files: dict[str, str | None] = {
        f"{folder}/type": "1", f"{folder}/operstate": state,
        f"{folder}/carrier_changes": str(changes),
        f"{folder}/statistics/rx_errors": str(errors), f"{folder}/statistics/tx_errors": "0",
    }  # fmt: skip
    return files | ({f"{folder}/device": ""} if real else {})


def port(state: str = "4: ACTIVE", downed: int = 0, symbols: int = 0) -> dict[str, str | None]:
    folder = "sys/class/infiniband/mlx5_0/ports/1"
    return {
        "sys/class/net/lo/type": "772", f"{folder}/state": state,
        f"{folder}/counters/link_downed": str(downed),
        f"{folder}/counters/symbol_error": str(symbols),
    }  # fmt: skip


HOT = heat(0, 9, 0, "0,2") | heat(2, 9, 0, "0,2") | heat(1, 9, 0, "1,3")
TABLE: list[tuple[str, Case]] = [
    ("EDAC", Case("corrected before", [{f"{MC}/ce_count": "90", f"{MC}/ue_count": "1"}, {}])),
    ("EDAC", Case("uncorrectable", [{f"{MC}/ce_count": "9", f"{MC}/ue_count": "0"},
                                    {f"{MC}/ue_count": "2"}],
                  [(BROKEN, "memory-ue", "mc0: uncorrectable memory errors (2)")])),
    ("EDAC", Case("corrected", [{f"{MC}/ce_count": "9"}, {f"{MC}/ce_count": "12"}],
                  [(CONTEXT, "memory-ce", "mc0: corrected memory errors (3)")])),
    ("EDAC", Case("set back", [{f"{MC}/ue_count": "9"}, {f"{MC}/ue_count": "0"}])),
    ("CPU", Case("hot once, before", [HOT, {}])),
    ("CPU", Case("hot: one package, read by three CPUs",
                 [HOT, heat(0, 12, 1, "0,2") | heat(2, 12, 1, "0,2") | heat(1, 12, 0, "1,3")],
                 [(SLOW, "cpu-thermal", "cpu0: a core was too hot and ran slower (1)")])),
    ("kernel", Case("hung before", [KERNEL, {}])),
    ("kernel", Case("hung", [KERNEL, {"proc/sys/kernel/hung_task_detect_count": "5"}],
                    [(CONTEXT, "hung-task", "tasks that the kernel reports as hung (1)")])),
    ("kernel", Case("an oops", [KERNEL, {"sys/kernel/oops_count": "1"}],
                    [(SLOW, "oops", "the kernel failed and went on (1)")])),
    ("PCIe", Case("fatal", [aer(0, 0), aer(1, 0)], [(BROKEN, "pcie-fatal", ":00.0: fatal")])),
    ("PCIe", Case("not fatal", [aer(3, 0), aer(3, 2)], [(CONTEXT, "pcie-nonfatal", "(2)")])),
    ("PCIe", Case("all slots narrow", [card("81", 8) | card("82", 8)])),
    ("PCIe", Case("narrower than its like", [card("81", 16) | card("82", 4)],
                  [(SLOW, "pcie-width", "0000:82:00.0: PCIe x4, where x16 is usual")])),
    ("PCIe", Case("narrower than before", [card("81", 16), card("81", 8)],
                  [(SLOW, "pcie-width", "0000:81:00.0: PCIe x8, where x16 is usual")])),
    ("PCIe", Case("a bridge", [card("81", 16, "0x06") | card("82", 16), card("81", 1, "0x06")])),
    ("PCIe", Case("a smaller card", [card("81", 16) | card("82", 8, most=8)])),
    ("network", Case("nothing changes", [link("eth0", 7, 40), {}])),
    ("network", Case("down", [link("eth0", 1), link("eth0", 2, state="down"), {}],
                     [(SLOW, "link-down", "eth0: the link was up and is down")])),
    ("network", Case("down from the start", [link("eth1", 1, state="down"), {}, {}])),
    ("network", Case("away and back", [link("eth0", 1), link("eth0", 3)],
                     [(SLOW, "link-flap", "eth0: the link went and came back")])),
    ("network", Case("a container's, away and back",
                     [link("veth1", 1, real=False), link("veth1", 3, real=False)])),
    ("network", Case("a container that ends", [link("veth1", 1, real=False),
        link("veth1", 2, state="lowerlayerdown", real=False)])),
    ("network", Case("some errors", [link("eth0", 1, 5), link("eth0", 1, 9)],
                     [(CONTEXT, "link-errors", "eth0: 4 errors in the last 5 s")])),
    ("network", Case("many errors", [link("eth0", 1, 5), link("eth0", 1, 65)],
                     [(SLOW, "link-errors", "eth0: 60 errors")])),
    ("network", Case("InfiniBand is down", [port(), port("1: DOWN", 1), {}],
                     [(BROKEN, "link-down", "mlx5_0/1: the link was up and is down"),
                      (CONTEXT, "link-errors", "")])),
    ("network", Case("InfiniBand is disabled by hand", [port(), port("1: DOWN"), {}],
                     [(SLOW, "link-down", "mlx5_0/1")])),
    ("network", Case("InfiniBand: symbol errors", [port(), port(symbols=51)],
                     [(SLOW, "link-errors", "mlx5_0/1: 51 errors")])),
]  # fmt: skip


def witness_of(kind: str, root: Path) -> MachineWitness:
    return NetworkWitness(root) if kind == "network" else Counters(kind, root)


@pytest.mark.parametrize(("kind", "case"), TABLE, ids=lambda each: getattr(each, "name", each))
def test_counters_say(kind: str, case: Case, tmp_path: Path) -> None:
    check(follow(witness_of(kind, tmp_path), tmp_path, case), case)


PARTS: list[tuple[str, Files]] = [
    ("EDAC", {"sys/x": ""}), ("CPU", {}),
    ("kernel", {}), ("PCIe", {f"{PCI}:81:00.0/class": "0x030000"}), ("network", {}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "files"), PARTS, ids=[kind for kind, _ in PARTS])
def test_without_its_files_it_cannot_be_read(kind: str, files: Files, tmp_path: Path) -> None:
    with pytest.raises(CannotReadError):
        follow(witness_of(kind, tmp_path), tmp_path, Case("", [files]))


def test_names_and_times_of_all_witnesses() -> None:
    every = witnesses()
    assert len({witness.name for witness in every}) == len(every)
    for witness in every:
        assert 0 < len(witness.name) <= 32
        assert witness.every_s > 0
