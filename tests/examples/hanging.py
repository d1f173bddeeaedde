"""A real job, under torchrun or another launcher: a rank hangs, is named, and goes on to the end.

A file of its data is a pipe that nobody writes into: its reader hangs as one does whose file server
is gone, and goes on when the text comes. So it is known which rank hangs, and at which step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import sidecars
from tests.incidents import fired
from tests.monitor.process import Monitor, environment
from tests.nursery import Child, nursery
from tests.ports import free_port
from tests.waiting import wait_for
from tests.worker_server.ranks import Rank

RANKS = 2
QUICK = ("--set", "undeclared_floor_s=5", "--set", "record_repeat_s=2")
"""Tests have no half a minute for each hang."""


@dataclass
class Session:
    """What was seen of one job from outside; a list has an item for each rank."""

    incident: dict[str, Any]
    names: list[str] = field(default_factory=list)
    """Of the ranks that the monitor sees then."""
    hung: list[dict[str, Any]] = field(default_factory=list)
    """States while one rank hangs."""
    active: list[dict[str, Any]] = field(default_factory=list)
    """Unfinished collectives then."""
    records: list[dict[str, Any]] = field(default_factory=list)
    """All collectives then."""
    stacks: list[str] = field(default_factory=list)
    status: int | None = None
    """torchrun's own, once the rank went on."""
    after: list[dict[str, Any]] = field(default_factory=list)
    """States of the dead."""
    ended: list[str] = field(default_factory=list)
    """How the ranks ended, in words."""
    steps: list[list[list[Any]]] = field(default_factory=list)
    """Rows of /v1/steps, of the dead."""
    last_records: list[dict[str, Any]] = field(default_factory=list)
    """All collectives that the black box has of the dead: torch's as it was read last."""
    accused: list[list[str]] = field(default_factory=list)
    """Culprits of all incidents of the whole run that fired."""


def ours(run_dir: Path, **more: str) -> dict[str, str]:
    """The environment of ranks on this machine; what they leave answers for a while."""
    nobodys = {"LIGHTKEEPER_MONITOR": "", "LIGHTKEEPER_LINGER_S": "60"}
    return environment(
        GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1", LIGHTKEEPER_RUN_DIR=str(run_dir),
        **nobodys | more,
    )  # fmt: skip


def torchrun(
    folder: Path, python: str, script: Path, arguments: list[str], *, name: str, **environ: str
) -> subprocess.Popen[bytes]:
    """Two ranks of a script; what they print is in NAME.out and NAME.err of the folder."""
    return started(folder, by_torchrun(script, arguments, python), name=name, **environ)


def by_torchrun(script: Path, arguments: list[str], python: str = sys.executable) -> list[str]:
    """The command for two ranks of a script."""
    return [python, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS),
            "--master-port", str(free_port()), str(script), *arguments]  # fmt: skip


def started(
    folder: Path, command: list[str], *, name: str, **environ: str
) -> subprocess.Popen[bytes]:
    """A command; what it prints is in NAME.out and NAME.err of the folder."""
    with (folder / f"{name}.out").open("w") as out, (folder / f"{name}.err").open("w") as err:
        return subprocess.Popen(
            command, env=ours(folder / "run", **environ), cwd=folder, stdout=out, stderr=err
        )


@dataclass
class Forked:
    """Ranks of a script, which share one import of torch; rank N prints into NAME.out.N."""

    ranks: list[Child]

    @classmethod
    def started(
        cls, folder: Path, command: list[str], *, name: str, ranks: int = RANKS, **environ: str
    ) -> Forked:
        """As `started`, where the command is the script and its arguments."""
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        given = ours(folder / "run", WORLD_SIZE=str(ranks), **meet, **environ)
        given |= sidecars.forked()
        made = [
            nursery("torch").start(
                command, {**given, "RANK": str(number), "LOCAL_RANK": str(number)},
                out=(out := folder / f"{name}.out.{number}"), err=out, cwd=folder,
            )
            for number in range(ranks)
        ]  # fmt: skip
        return cls(made)

    def wait(self, timeout: float) -> int:
        """As torchrun's: whether one failed."""
        return int({rank.wait(timeout) for rank in self.ranks} != {0})

    def terminate(self) -> None:
        for rank in self.ranks:
            rank.kill()


def asked(rank: Rank, path: str) -> dict[str, Any]:
    """An answer of a rank's WorkerServer."""
    status, text = rank.ask(path)
    assert status == 200, text
    return json.loads(text)


def dead(rank: Rank) -> dict[str, Any] | None:
    """The state of a rank that has ended; None before."""
    state = asked(rank, "/v1/state")
    return None if state["process"]["alive"] else state


def named(monitor: Monitor) -> dict[str, Any] | None:
    """The incident that names a rank: one may fire before the second witness is read, unsure."""
    incidents = fired(monitor.get("/v1/incidents")["incidents"])
    return next((item for item in incidents if item["culprits"]), None)


@contextmanager
def hung_and_healed(
    folder: Path,
    command: list[str],
    file: Path,
    start: Callable[..., subprocess.Popen[bytes] | Forked] = started,
    **environ: str,
) -> Iterator[Session]:
    """Run the command with `file` not coming at first; all that was seen of its ranks."""
    pipe, run_dir, text = folder / "pipe", folder / "run", file.read_bytes()
    os.mkfifo(pipe)
    file.unlink()
    os.link(pipe, file)
    monitor = Monitor(
        "--store", str(folder / "monitor.db"), "--observe", *QUICK, port=free_port()
    )  # fmt: skip
    ranks: list[Rank] = []
    job = None
    try:
        monitor.ready()
        given = {"LIGHTKEEPER_ATTACH": "1", "LIGHTKEEPER_MONITOR": monitor.url, **environ}
        job = start(folder, command, name="attached", **given)
        incident = wait_for(lambda: named(monitor), within_s=400, what="a rank is named")
        listed = monitor.get("/v1/ranks")["ranks"]
        listed.sort(key=lambda row: row["rank"])
        ranks = [Rank(row["pid"], run_dir) for row in listed]
        seen = Session(incident, [row["rank"] for row in listed])
        for rank in ranks:
            seen.hung.append(asked(rank, "/v1/state"))
            seen.active.append(asked(rank, "/v1/flight_recorder?active=1"))
            seen.records.append(asked(rank, "/v1/flight_recorder"))
            seen.stacks.append(rank.ask("/v1/stacks")[1])
        _let_come(file, text, pipe)
        seen.status = job.wait(90)
        for rank in ranks:
            seen.after.append(wait_for(lambda of=rank: dead(of), within_s=20, what="it is dead"))
            seen.ended.append(asked(rank, "/v1/last_words")["ended"])
            seen.steps.append(asked(rank, "/v1/steps")["rows"])
            seen.last_records.append(asked(rank, "/v1/flight_recorder"))
        incidents = fired(monitor.get("/v1/incidents")["incidents"])
        seen.accused = [item["culprits"] for item in incidents]
        yield seen
    finally:
        if job is not None:
            job.terminate()  # torchrun ends its ranks
            job.wait(30)
        for rank in ranks:
            rank.end()
        monitor.end()


def _let_come(file: Path, text: bytes, pipe: Path) -> None:
    """The text comes to who waits for it, and the file is one for who comes later."""
    whole = pipe.with_name("whole")
    whole.write_bytes(text)
    whole.replace(file)
    pipe.write_bytes(text)
