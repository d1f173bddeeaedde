"""The campaign's fleet, with what the matrix varies: gate, keeper, the Lighthouse's timeout."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.campaign.fleet import Fleet
from tests.matrix.cases import JOIN_TIMEOUT_MS, Setting
from trainer import faults
from trainer.demo.fleet import free_port


@dataclass
class MatrixFleet(Fleet):
    """Made by `of`."""

    setting: Setting = field(default_factory=lambda: Setting("default", "3x1", True, False))
    gate_port: int = field(default_factory=free_port)
    gate_admin_port: int = field(default_factory=free_port)

    def start(self) -> None:
        """Start everything; returns at once."""
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
                sys.executable, "-m", "monitor.cli", "gate",
                "--lighthouse", f"http://127.0.0.1:{self.lighthouse_port}",
                "--bind", f"127.0.0.1:{self.gate_port}",
                "--admin", f"127.0.0.1:{self.gate_admin_port}",
                "--state", str(self.folder / "gate.json"),
                "--token-file", str(self.folder / "token"),
            ],
        )  # fmt: skip

    def start_monitor(self) -> None:
        """Start it, if this setting has one."""
        if self.setting.keeper:
            super().start_monitor()

    def lighthouse_for_groups(self) -> str:
        """What the groups take for the Lighthouse."""
        port = self.gate_port if self.setting.gate else self.lighthouse_port
        return f"http://127.0.0.1:{port}"

    def stop(self) -> None:
        """End everything that was started."""
        super().stop()
        if "gate" in self.processes:
            self.kill("gate")

    def repair(self) -> None:
        """As the campaign's; with nobody there who keeps a quarantine, the faults alone."""
        if self.setting.keeper:
            super().repair()
            return
        faults.inject(self.fault_file)
        for path in faults.fired(self.fault_file).glob("*"):
            path.unlink(missing_ok=True)

    @classmethod
    def of(cls, setting: Setting, folder: Path) -> MatrixFleet:
        """A fleet of this setting."""
        return cls(shape=setting.shape, folder=folder, setting=setting)
