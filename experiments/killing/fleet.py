"""The fleet as people run it: torchrun in every group, and a keeper for each unit (`keep`)."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from experiments.fleet import STEP_TIME_S, Fleet, Setting

PAUSES_S: Final = {"lighthouse": 1.0, "gate": 0.1, "monitor": 2.0}
"""RestartSec of examples/systemd; a group's supervisor comes back after 1 s."""
_GRACE_S: Final = 60.0
TRAINING: Final = ("--fingerprint-every", "5")


@dataclass
class KillFleet(Fleet):
    """Two groups of two ranks; made by `made`."""

    @classmethod
    def made(cls, folder: Path, *, gate: bool) -> KillFleet:
        """With the monitor's and TorchFT's defaults."""
        setting = Setting("2x2", gate=gate)
        return cls(setting, folder, trainer_options=TRAINING, monitor_options=())

    @property
    def units(self) -> Path:
        """What the keepers noted."""
        return self.folder / "events" / "units.jsonl"

    @property
    def steps(self) -> Path:
        """The trainers' status lines."""
        return self.folder / "steps.jsonl"

    def _spawn(self, name: str, command: list[str]) -> None:
        keeper = [
            sys.executable, "-m", "experiments.killing.keep", "--name", name,
            "--events", str(self.units), "--pause", str(PAUSES_S.get(name, 1.0)),
            *(["--fork"] if self.nursery is not None else []),
        ]  # fmt: skip
        super()._spawn(name, [*keeper, "--", *command])

    def _start_groups(self) -> None:
        for index in range(self.groups):
            self._spawn(f"supervisor-rg_{index}", self._supervisor(index))

    def _supervisor(self, index: int) -> list[str]:
        name = f"rg_{index}"
        return [
            sys.executable, "-m", "lightkeeper.trainer.supervisor", "--group", name,
            "--hosts", ",".join(f"host-{index}{letter}" for letter in "abcd"),
            "--nproc", str(self.ranks_per_group),
            "--status-file", str(self.folder / "events" / f"{name}.jsonl"),
            "--", *self.arguments(),
        ]  # fmt: skip

    def arguments(self) -> list[str]:
        """Of every rank."""
        return [
            "--steps", "0", "--step-time", str(STEP_TIME_S), "--log-every", "1",
            "--status-file", str(self.steps), "--min-replicas", str(self.min_replicas),
            *self.trainer_options,
        ]  # fmt: skip

    def stop(self) -> None:
        """End everything, groups first."""
        names = sorted(self.processes, key=lambda name: not name.startswith("supervisor"))
        for name in names:
            self.processes[name].send_signal(signal.SIGTERM)
        for name in names:
            process = self.processes.pop(name)
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
