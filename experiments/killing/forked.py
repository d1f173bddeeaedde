"""`KillFleet` in seconds: its processes are forks of some that have imported what they need."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.fleet import SMALL, Fleet
from experiments.killing.fleet import KillFleet
from tests.nursery import nursery


@dataclass
class ForkedFleet(KillFleet):
    """Made by `made`."""

    def __post_init__(self) -> None:
        self.trainer_options = (*self.trainer_options, *SMALL)
        self.nursery = nursery("torch")

    def _spawn(self, name: str, command: list[str]) -> None:
        spawn = Fleet._spawn if name == "zygote" else KillFleet._spawn
        spawn(self, name, command)

    def _start_groups(self) -> None:
        Fleet._start_groups(self)
