"""The campaign's fleet, with what the matrix varies: gate, keeper, the Lighthouse's timeout."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightkeeper.trainer import faults
from lightkeeper.trainer.demo import free_port
from tests.campaign.fleet import Fleet, FleetError
from tests.campaign.forks import ADDRESS
from tests.matrix.cases import JOIN_TIMEOUT_MS, Setting


def _ip(command: str) -> None:
    done = subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FleetError(f"ip {command}: {done.stderr.strip()} (needs root and iproute2)")


@dataclass
class MatrixFleet(Fleet):
    """Made by `of`."""

    setting: Setting = field(default_factory=lambda: Setting("default", "3x1", True, False))
    gate_port: int = field(default_factory=free_port)
    gate_admin_port: int = field(default_factory=free_port)

    def start(self) -> None:
        """Start everything; returns at once."""
        if self.setting.special == "cut":
            self.address = self.end_address("here")
            self._make_namespace()
        if self.setting.gate:
            self.monitor_options = (*self.monitor_options, "--gate", self.gate_admin)
        super().start()

    @property
    def gate_admin(self) -> str:
        """Where the gate is told what it refuses."""
        return f"http://127.0.0.1:{self.gate_admin_port}"

    @property
    def min_replicas(self) -> int:
        """Of the Lighthouse, the trainers and the monitor."""
        return self.setting.min_replicas

    def lighthouse_options(self) -> tuple[str, ...]:
        """Beyond its address."""
        return ("--join_timeout_ms", str(JOIN_TIMEOUT_MS[self.setting.timeouts]))

    def start_lighthouse(self) -> None:
        """Start it, or start it again on the same port; the gate before it starts once."""
        super().start_lighthouse()
        if self.setting.gate and "gate" not in self.processes:
            self.start_gate()

    def start_gate(self) -> None:
        """Start it, or start it again on the same ports."""
        self._spawn(
            "gate",
            [
                sys.executable, "-m", "lightkeeper.monitor.cli", "gate",
                "--lighthouse", f"http://{self.address}:{self.lighthouse_port}",
                "--bind", f"{self.address}:{self.gate_port}",
                "--admin", f"127.0.0.1:{self.gate_admin_port}",
                "--state", str(self.folder / "gate.json"),
                "--token-file", str(self.folder / "token"),
            ],
        )  # fmt: skip

    def start_monitor(self) -> None:
        """Start it, if this setting has one."""
        if self.setting.keeper:
            super().start_monitor()

    def for_groups(self) -> dict[str, str]:
        """With a gate, what `lightkeeper run` would set."""
        if not self.setting.gate:
            return super().for_groups()
        gate = f"http://{self.address}:{self.gate_port}"
        return {"TORCHFT_LIGHTHOUSE": gate, "TORCHFT_QUORUM_RETRIES": "59"}

    def group_options(self, group: str) -> dict[str, Any]:
        """The last group is the special one."""
        last = group == f"rg_{self.groups - 1}"
        if self.setting.special == "rogue" and last:
            return {"asks": False}
        if self.setting.special != "cut":
            return {}
        end = "there" if last else "here"
        address = self.end_address(end)
        return {
            "netns": self.netns if last else None,
            "environment": {
                ADDRESS: address,
                "GLOO_SOCKET_IFNAME": self.link(end),
                "LIGHTKEEPER_BIND": address,
            },
        }

    # -- a host of its own ------------------------------------------------------------------

    @property
    def netns(self) -> str:
        """Name of the namespace."""
        return f"lk{self.gate_port}"

    def link(self, end: str) -> str:
        """Name of one end of its link."""
        return f"lk{end[0]}{self.gate_port}"

    def end_address(self, end: str) -> str:
        """Address of one end; several fleets may run side by side."""
        return f"10.77.{self.gate_port % 256}.{1 if end == 'here' else 2}"

    def _make_namespace(self) -> None:
        here, there, name = self.link("here"), self.link("there"), self.netns
        for command in (
            f"netns add {name}",
            f"link add {here} type veth peer name {there} netns {name}",
            f"addr add {self.end_address('here')}/30 dev {here}",
            f"link set {here} up",
            f"-n {name} addr add {self.end_address('there')}/30 dev {there}",
            f"-n {name} link set {there} up",
            f"-n {name} link set lo up",
        ):
            _ip(command)

    def set_link(self, *, up: bool) -> None:
        """Plug the namespace in or out, at its own end."""
        _ip(f"-n {self.netns} link set {self.link('there')} {'up' if up else 'down'}")

    def stop(self) -> None:
        """End everything that was started."""
        super().stop()
        if "gate" in self.processes:
            self.kill("gate", signal.SIGTERM)
        if self.setting.special == "cut":
            with contextlib.suppress(FleetError):
                _ip(f"netns del {self.netns}")  # its link goes with it

    def repair(self) -> None:
        """As the campaign's; with nobody there who keeps a quarantine, the faults alone."""
        if self.setting.keeper:
            super().repair()
            return
        faults.inject(self.fault_file)
        for path in faults.marker_folder(self.fault_file).glob("*"):
            path.unlink(missing_ok=True)

    @classmethod
    def of(cls, setting: Setting, folder: Path) -> MatrixFleet:
        """A fleet of this setting."""
        rust_log = "info" if setting.special == "rogue" else "warn"
        return cls(shape=setting.shape, folder=folder, setting=setting, rust_log=rust_log)
