"""Two fleets of one seed that meet the same fault: one observed, one that nobody looks at."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from experiments.fleet import SMALL, Fleet, Setting
from lightkeeper.monitor.act.http import Fetcher
from lightkeeper.monitor.act.lighthouse import Lighthouse
from lightkeeper.monitor.model.observation import LighthouseView
from lightkeeper.trainer import status
from tests.integration.observed.recorder import Recorder, Registry
from tests.monitor.act.schedulers.receiver import SECRET, Receiver, served
from tests.nursery import nursery
from tests.waiting import wait_for

SICK = "rg_1.0"
HANG = {"id": "h", "kind": "hang", "phase": "forward", "rank": SICK, "step": 25}
TRAINING = (
    *SMALL, "--step-time", "0.1", "--timeout", "12", "--fingerprint-every", "1", "--seed", "11",
)  # fmt: skip
"""The others give up their collective some seconds after the monitor has told the hang."""
JOIN_TIMEOUT_MS = 2000
"""For so long the Lighthouse then waits for the group that hangs, and beats on."""
_NAMES = re.compile(r"[0-9a-f]{8,}|\d+")


@dataclass
class Pair(Fleet):
    """One of the two."""

    zygote: ClassVar[str] = "tests.integration.observed.together"
    recorder: Recorder | None = None
    hook: str = ""
    """URL of the scheduler's webhook."""
    registry: Registry | None = None

    @classmethod
    def made(cls, folder: Path, recorder: Recorder | None = None, hook: str = "") -> Pair:
        """Observed where there is a recorder."""
        setting = Setting("3x1", keeper=recorder is not None, gate=True)
        return cls(
            folder=folder, setting=setting,
            trainer_options=TRAINING, recorder=recorder, hook=hook, nursery=nursery("torch"),
        )  # fmt: skip

    # -- how it differs from the matrix' ----------------------------------------------------

    def start(self) -> None:
        """Start everything; the fault waits for its step."""
        self.folder.mkdir()
        self.inject([HANG])
        if self.recorder is not None:
            self.registry = Registry(super().monitor_url, self.recorder)
        super().start()

    @property
    def keeper_folder(self) -> Path:
        """All that the monitor may write."""
        return self.folder / "keeper"

    @property
    def monitor_url(self) -> str:
        """Where ranks and launchers ask; without a monitor nobody is there."""
        return super().monitor_url if self.registry is None else self.registry.url

    def lighthouse_options(self) -> tuple[str, ...]:
        """Beyond its address."""
        return ("--join_timeout_ms", str(JOIN_TIMEOUT_MS))

    def start_monitor(self) -> None:
        """In observe mode, with everything that one could act by, each behind the recorder."""
        if self.recorder is None:
            return
        self.keeper_folder.mkdir()
        secret = self.folder / "secret"
        secret.write_bytes(SECRET)
        front, port = self.recorder.front, self.lighthouse_port
        self._spawn(
            "monitor",
            [
                sys.executable, "-m", "tests.integration.observed.audited",
                str(self.folder / "logs" / "audit.jsonl"), "monitor", "--observe",
                "--lighthouse", front("lighthouse", f"http://127.0.0.1:{port}"),
                "--gate", front("gate", self.gate_admin),
                "--bind", f"127.0.0.1:{self.monitor_port}",
                "--store", str(self.keeper_folder / "monitor.db"),
                "--token-file", str(self.folder / "token"),
                "--scheduler", f"webhook={front('scheduler', self.hook)}/hook",
                "--scheduler-webhook-secret-file", str(secret),
                "--min-replicas", str(self.min_replicas),
                "--set", "stall_floor_s=2", "--set", "stall_factor=4",  # before the others give up
            ],
        )  # fmt: skip

    def stop(self) -> None:
        """End everything."""
        super().stop()
        if self.registry is not None:
            self.registry.close()

    # -- how it goes ------------------------------------------------------------------------

    def ready(self) -> None:
        """Until every group beats, and waits for leave to ask for its first quorum."""
        wait_for(
            lambda: self.check() or len(list(self.folder.glob("ready-*"))) == 3,
            within_s=90, what="three ranks are ready",
        )  # fmt: skip
        fetcher = Fetcher()
        try:
            light = Lighthouse(f"http://127.0.0.1:{self.lighthouse_port}", fetcher)

            def beating() -> bool:
                view = light.look(2.0)
                return isinstance(view, LighthouseView) and len(view.heartbeat_ages_s) == 3

            wait_for(beating, within_s=20, what="three groups beat")
        finally:
            fetcher.close()

    def begin(self) -> None:
        """All at once: the first quorum is of three, and nobody heals."""
        (self.folder / "go").touch()

    def steps(self) -> list[dict[str, Any]]:
        """The trainers' own status lines."""
        return status.read_events(self.folder / "steps.jsonl")

    def after(self) -> list[int]:
        """Commits of each survivor without the sick group."""
        done = [
            line["rank"] for line in self.steps()
            if line["event"] == "step" and line["committed"] and line["participants"] == 2
        ]  # fmt: skip
        return [done.count("rg_0.0"), done.count("rg_2.0")]

    def told(self, rank: str) -> list[str]:
        """Its status lines, less what is a time or a name of this run."""
        return [
            json.dumps({k: v for k, v in line.items() if k not in ("time", "seconds", "pid")})
            for line in self.steps()
            if line["rank"] == rank
        ]

    def pids(self) -> dict[str, int]:
        """Rank -> process, of each that ever started; more than one is told as 0."""
        by_rank: dict[str, int] = {}
        for line in self.steps():
            if line["event"] == "started":
                by_rank[line["rank"]] = 0 if line["rank"] in by_rank else line["pid"]
        return by_rank

    def fates(self) -> dict[str, str]:
        """What became of every rank: its process as the kernel has it, and its launcher's word."""
        by_rank = {}
        for rank, pid in sorted(self.pids().items()):
            lines = status.read_events(self.folder / "events" / f"{rank.partition('.')[0]}.jsonl")
            events = [line["event"] for line in lines]
            by_rank[rank] = f"{alive(pid)}, its launcher: {events}"
        return by_rank

    def files(self) -> set[str]:
        """Every file of the fleet, numbers in names left out; not the monitor's own."""
        own = {self.folder / "logs" / name for name in ("audit.jsonl", "monitor.log")}
        own.add(self.folder / "secret")
        paths = {
            Path(folder, name)
            for folder, _, names in os.walk(self.folder) for name in names
            if not Path(folder).is_relative_to(self.keeper_folder)
        }  # fmt: skip
        return {_NAMES.sub("#", str(path.relative_to(self.folder))) for path in paths - own}

    def audit(self) -> Iterator[list[Any]]:
        """What the monitor's interpreter told of it, each once."""
        for line in {*(self.folder / "logs" / "audit.jsonl").read_text().splitlines()}:
            yield json.loads(line)


def alive(pid: int) -> str:
    """Whether a process is there, stopped or ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"
    return {"T": "stopped", "Z": "ended"}.get(state, "runs")


@dataclass
class Two:
    """Both, and what is beside the observed one."""

    observed: Pair
    alone: Pair
    recorder: Recorder
    receiver: Receiver


def both(folder: Path, stack: ExitStack) -> Two:
    """Start them; they end with the stack."""
    recorder, receiver = Recorder(), Receiver()
    stack.callback(recorder.close)
    hook = stack.enter_context(served(receiver)).rpartition("/")[0]
    two = Two(Pair.made(folder / "o", recorder, hook), Pair.made(folder / "a"), recorder, receiver)
    for pair in (two.observed, two.alone):
        stack.callback(pair.stop)
        pair.start()
    return two
