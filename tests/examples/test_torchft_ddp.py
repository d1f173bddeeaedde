"""examples/torchft_ddp: two groups of TorchFT's own DDP; one hangs, is killed, comes back, heals.

Each is a rank with the store that torchrun has for it; LIGHTKEEPER_TORCHFT_DDP=1 runs a second
order. Both groups are held where the test wants them by files of their data that do not come at
first, see `hanging`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from tests import sidecars
from tests.deep import only_explored
from tests.examples.hanging import asked, dead, named, ours
from tests.examples.scripts import Example, same_weights, text_name, texts
from tests.monitor.lighthouses import installations, lighthouse_process
from tests.monitor.process import Monitor
from tests.nursery import Child, nursery
from tests.ports import free_port
from tests.waiting import wait_for
from tests.worker_server.ranks import Rank

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

TORCHFT_DDP = Example("torchft_ddp")
BATCH, GROUPS = 4, 2
HANGS, WAITS, STEPS = 10, 20, 40
"""Batches after which group 1 hangs, and group 0 waits for it to be back; steps of the run."""


WITH_A_STORE = """
import os, runpy, sys
import torch.distributed as dist
port = int(os.environ["MASTER_PORT"])
store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass
class Story:
    """What was seen."""

    incident: dict[str, Any] = field(default_factory=dict)
    """Of the hang."""
    state: dict[str, Any] = field(default_factory=dict)
    """Of group 0, when group 1 was gone and it had trained on."""
    record: dict[str, Any] = field(default_factory=dict)
    statuses: list[int] = field(default_factory=list)
    """Of group 1's first life, group 0's, and group 1's second."""
    groups: list[list[int]] = field(default_factory=list)
    """Of group 0 and of group 1's second life: how many groups each step had."""
    after: list[dict[str, Any]] = field(default_factory=list)


class Job:
    """The groups, and the files that they wait for."""

    def __init__(
        self, folder: Path, monitor: Monitor, lighthouse: str, order: str, mend: str
    ) -> None:
        self.folder, self.monitor = folder, monitor
        self._order, self._mend = order, mend
        self._lighthouse = lighthouse
        self.lives: list[Child] = []
        self.ranks: list[Rank] = []

    def start(self, group: int, name: str) -> Child:
        environ = ours(
            self.folder / "run", LIGHTKEEPER_ATTACH="1", LIGHTKEEPER_MONITOR=self.monitor.url,
            TORCHFT_LIGHTHOUSE=self._lighthouse, REPLICA_GROUP_ID=f"{group}", RUST_LOG="error",
            LIGHTKEEPER_MEND_TORCHFT=self._mend, RANK="0", WORLD_SIZE="1", LOCAL_RANK="0",
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), **sidecars.forked(),
        )  # fmt: skip
        given = ["--data", str(self.folder / "texts"), "--steps", str(STEPS)]
        given += ["--quorum-first"] if self._order == "after" else []
        words = ["-c", WITH_A_STORE, TORCHFT_DDP.script, *given, "--save"]
        self.lives.append(nursery("torch").start(
            [*words, self.folder / f"{name}.pt"], environ, out=self.folder / f"{name}.out",
            cwd=self.folder,
        ))  # fmt: skip
        return self.lives[-1]

    def rank(self, name: str, what: str, ready: Callable[[dict[str, Any]], bool]) -> Rank:
        """The rank of this name once its step state is as wanted."""

        def look() -> Rank | None:
            for row in self.monitor.get("/v1/ranks")["ranks"]:
                if row["rank"] == name and row["unreachable"] is None:
                    rank = Rank(row["pid"], self.folder / "run")
                    state = asked(rank, "/v1/state")
                    if state["process"]["alive"] and ready(state.get("step") or {}):
                        return rank
            return None

        ready_rank = wait_for(look, within_s=120, what=f"{name} {what}")
        self.ranks.append(ready_rank)
        return ready_rank

    def groups_of_steps(self, name: str) -> list[int]:
        lines = (self.folder / f"{name}.out").read_text().splitlines()
        return [int(line.rpartition(" ")[2]) for line in lines]

    def end(self) -> None:
        for life in self.lives:
            life.kill()
        for life in self.lives:
            life.wait(30)
        for rank in self.ranks:
            rank.end()


class Held:
    """A file that does not come until it is let."""

    def __init__(self, path: Path, pipe: Path) -> None:
        self._path, self._pipe, self._text = path, pipe, path.read_bytes()
        os.mkfifo(pipe)
        path.unlink()
        os.link(pipe, path)

    def whole_again(self) -> None:
        """For who comes later."""
        whole = self._pipe.with_suffix(".whole")
        whole.write_bytes(self._text)
        whole.replace(self._path)

    def reader(self) -> BinaryIO | None:
        """The pipe's other end, once somebody reads."""
        with contextlib.suppress(OSError):  # ENXIO: nobody
            return os.fdopen(os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK), "wb")
        return None

    def let_come(self, pipe: BinaryIO) -> None:
        """For who waits, and who comes later."""
        self.whole_again()
        with pipe:
            pipe.write(self._text)


def let_come(*files: Held) -> None:
    """All at once, when somebody waits for each."""
    pipes = [wait_for(file.reader, within_s=120, what="somebody reads") for file in files]
    for file, pipe in zip(files, pipes, strict=True):
        file.let_come(pipe)


def file_of(group: int, step: int) -> str:
    """The first file of a group's batch: files are dealt out in turn."""
    return text_name(GROUPS * BATCH * step + group)


@pytest.fixture(
    scope="module",
    params=["after", pytest.param("before", marks=pytest.mark.skipif(
        os.environ.get("LIGHTKEEPER_TORCHFT_DDP") != "1",
        reason="LIGHTKEEPER_TORCHFT_DDP=1 runs it",
    ))],
    ids="hangs {} zero_grad".format,
)  # fmt: skip
def order(request) -> str:
    """Of the hang: before the group has asked for the quorum of the step, or after."""
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory, order) -> Path:
    made = tmp_path_factory.mktemp("torchft_ddp")
    texts(made / "texts", STEPS * BATCH * GROUPS)
    return made


@contextmanager
def running(
    folder: Path, order: str, mend: str
) -> Iterator[tuple[Job, tuple[Held, ...], Held, Held]]:
    (library, *_) = installations().values()
    hangs = Held(folder / "texts" / file_of(1, HANGS), folder / "hangs")
    waits = Held(folder / "texts" / file_of(0, WAITS), folder / "waits")
    begins = tuple(
        Held(folder / "texts" / file_of(group, 0), folder / f"begins{group}") for group in (0, 1)
    )
    with lighthouse_process(
        library, folder / "lighthouse.py", free_port(),
        min_replicas=1, join_timeout_ms=5000, heartbeat_timeout_ms=2000,
    ) as lighthouse:  # fmt: skip
        monitor = Monitor(
            "--store", str(folder / "monitor.db"), "--observe", "--lighthouse", lighthouse,
            "--set", "undeclared_floor_s=5", "--set", "record_repeat_s=2", port=free_port(),
        )  # fmt: skip
        job = Job(folder, monitor, lighthouse, order, mend)
        try:
            monitor.ready()
            yield job, begins, hangs, waits
        finally:
            job.end()
            monitor.end()


@pytest.fixture(scope="module")
def story(folder, order) -> Iterator[Story]:
    with running(folder, order, "1") as pieces:
        yield _play(*pieces)


def _hang_and_kill(story: Story, job: Job, begins: tuple[Held, ...]) -> Child:
    """The group that is left."""
    first, second = job.start(0, "zero"), job.start(1, "one")
    let_come(*begins)
    hung = job.rank("1.0", "hangs", lambda step: step.get("commits", 0) >= HANGS - 1)
    story.incident = wait_for(lambda: named(job.monitor), within_s=45, what="the hang is named")
    hung.kill(signal.SIGKILL)
    story.statuses.append(second.wait(60))
    return first


def _play(job: Job, begins: tuple[Held, ...], hangs: Held, waits: Held) -> Story:
    story = Story()
    first = _hang_and_kill(story, job, begins)
    hangs.whole_again()
    alone = job.rank("0.0", "trains on", lambda step: step.get("commits", 0) >= WAITS - 2)
    story.state = asked(alone, "/v1/state")
    story.record = asked(alone, "/v1/flight_recorder")
    again = job.start(1, "again")
    job.rank("1.0", "asks for the quorum", _asks)
    let_come(waits)
    story.statuses += [first.wait(90), again.wait(90)]
    for rank in (alone, job.ranks[-1]):
        story.after.append(wait_for(lambda of=rank: dead(of), within_s=20, what="it is dead"))
    story.groups = [job.groups_of_steps(name) for name in ("zero", "again")]
    return story


def _asks(step: dict[str, Any]) -> bool:
    """Whether it has begun a step: its Manager asks for the quorum then."""
    begun = step.get("attempt", 0) > step.get("commits", 0) + step.get("commit_failures", 0)
    return step.get("source") == "torchft" and step.get("commits") == 0 and begun


@only_explored  # make test: tests/worker_server/test_last_words.py has the words of bug 1
def test_without_the_mend_the_survivor_dies_and_the_monitor_says_of_what(tmp_path) -> None:
    texts(tmp_path / "texts", STEPS * BATCH * GROUPS)
    with running(tmp_path, "after", "0") as (job, begins, _, _):
        assert _hang_and_kill(Story(), job, begins).wait(60) != 0
        said = wait_for(
            lambda: [text for text in _reasons(job.monitor) if "TorchFT's bug 1" in text],
            within_s=30, what=f"what it died of: {_reasons(job.monitor)}",
        )  # fmt: skip
    assert "0.0" in said[0]


def _reasons(monitor: Monitor) -> list[str]:
    return [json.dumps(incident) for incident in monitor.get("/v1/incidents")["incidents"]]


def test_the_monitor_names_the_group_that_hangs_while_its_manager_beats_on(story) -> None:
    assert story.incident["kind"] == "not_entered"
    assert (story.incident["culprits"], story.incident["victims"]) == (["1.0"], ["0.0"])


def test_the_other_group_trains_on_alone(story) -> None:
    step = story.state["step"]
    assert (step["source"], step["participants"]) == ("torchft", 1)
    assert WAITS - 2 <= step["commits"] <= WAITS


def test_the_ring_has_the_all_reduces_of_torchfts_comm_hook(story) -> None:
    ring = story.record["ring"]
    assert {entry["group"] for entry in ring} == {"torchft"}
    assert {entry["op"] for entry in ring} == {"all_reduce"}
    assert len({entry["quorum"] for entry in ring}) >= 2


def test_a_killed_group_comes_back_heals_and_both_end_with_zero(story) -> None:
    assert story.statuses[0] != 0
    assert story.statuses[1:] == [0, 0]
    assert {1, 2} == set(story.groups[0])
    assert story.groups[1][-1] == story.groups[0][-1] == 2


def test_every_step_that_was_committed_is_counted(story) -> None:
    zero, first = (state["step"] for state in story.after)
    assert zero["step"] == first["step"] == STEPS - 1
    assert zero["commits"] >= STEPS - 1  # the first may be a heal: TorchFT makes all equal
    assert 0 < first["commits"] <= STEPS - WAITS + 2


def test_both_groups_have_learned_the_same_to_the_last_bit(story, folder) -> None:
    assert same_weights(folder / "zero.pt", folder / "again.pt")
