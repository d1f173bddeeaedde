"""A day of a user at one monitor: runs one after the other, and two at once, mostly unnamed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import sidecars
from tests.monitor.lighthouses import installations, lighthouse_process
from tests.monitor.process import Monitor, environment
from tests.nursery import nursery
from tests.ports import free_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

RANK = """\
import os, pathlib, sys, time, lightkeeper
act, rank = sys.argv[1], os.environ["RANK"]
reporter, after = lightkeeper.attach(), pathlib.Path(sys.argv[2])
done = [pathlib.Path(f"{after}.{n}") for n in range(int(os.environ["WORLD_SIZE"]))]
step = 0
while not (act == "ends" and after.exists()):
    if act in ("crashes", "hangs") and rank == "1" and after.exists():
        if act == "crashes":
            raise RuntimeError("out of luck")
        time.sleep(1e6)
    with reporter.phase("forward"):
        time.sleep(0.02)
    with reporter.phase("communication"):
        done[int(rank)].write_text(" " * (step + 1))
        while not (act == "ends" and after.exists()) and not all(
            file.exists() and file.stat().st_size > step for file in done
        ):
            time.sleep(0.02)
    reporter.step(step := step + 1)
"""

TORCHFT = """\
import os, pathlib, sys, time, lightkeeper
lightkeeper.attach()
import torch, torch.distributed as dist
from torchft.manager import Manager
from torchft.process_group import ProcessGroupGloo
act, after, group = sys.argv[1], pathlib.Path(sys.argv[2]), os.environ["REPLICA_GROUP_ID"]
torch.set_num_threads(1)
weights, store = torch.zeros(3), dist.TCPStore("127.0.0.1", 0, is_master=True)
manager = Manager(
    pg=ProcessGroupGloo(), load_state_dict=lambda state: weights.copy_(state["w"]),
    state_dict=lambda: {"w": weights.clone()}, min_replica_size=1, store_addr="127.0.0.1",
    store_port=store.port, replica_id="train_" + group, hostname="127.0.0.1",
)
while not (act == "ends" and after.exists()):
    if act in ("crashes", "hangs") and group == "1" and after.exists():
        if act == "crashes":
            raise RuntimeError("out of luck")
        time.sleep(1e6)
    manager.start_quorum()
    gradient = torch.ones(3)
    manager.allreduce(gradient).wait()
    if manager.should_commit():
        weights += gradient
    time.sleep(0.05)
manager.shutdown(wait=False)
"""
"""One rank a group."""


class Launch:
    """What a launcher starts: the ranks of one group, on this host or on several."""

    def __init__(self, day: Day, act: str, *, ranks: int = 2, group: str = "", hosts: int = 1,
                 **more: str) -> None:  # fmt: skip
        script, parent = (TORCHFT, "torch") if group else (RANK, "rank")
        more |= {"REPLICA_GROUP_ID": group, "TORCHFT_LIGHTHOUSE": day.lighthouse} if group else {}
        self.after = day.folder / f"after-{len(day.launches)}"
        master = more.pop("MASTER_PORT", str(free_port()))
        self._said = self.after.with_suffix(".said")
        self.ranks = [
            nursery(parent).start(
                ["-c", script, act, self.after],
                environment(**{
                    "RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": master, "LIGHTKEEPER_MONITOR": day.monitor.url, **day.own,
                    **sidecars.forked(),
                    **(day.host(rank % hosts) if hosts > 1 else {}), **more,
                }),
                err=self._said,
            )
            for rank in range(ranks)
        ]  # fmt: skip
        day.launches.append(self)

    @property
    def pids(self) -> list[int]:
        return [rank.pid for rank in self.ranks]

    def go_on(self) -> None:
        """Its act happens now."""
        self.after.touch()

    def send(self, number: signal.Signals) -> None:
        for rank in self.ranks:
            rank.send_signal(number)

    def ended(self) -> str:
        """Its stderr."""
        for rank in self.ranks:
            rank.wait()
        return self._said.read_text()


class Day:
    """The monitor, and what was launched."""

    def __init__(self, folder: Path, lighthouse: str) -> None:
        self.folder, self.launches, self.said = folder, list[Launch](), set[str]()
        self.lighthouse = lighthouse
        self.own = {
            "XDG_STATE_HOME": str(folder / "state"), "LIGHTKEEPER_RUN_DIR": self.run_dir(0),
            "LIGHTKEEPER_LINGER_S": "60", "OMP_NUM_THREADS": "1", "RUST_LOG": "error",
        }  # fmt: skip
        self.port = free_port()
        self.start_monitor("day.db")

    def run_dir(self, number: int) -> str:
        return str(self.folder / f"run-{number}")

    def host(self, number: int) -> dict[str, str]:
        """A rank's variables on one of several hosts."""
        return {
            "LIGHTKEEPER_HOST": f"h{number}", "LIGHTKEEPER_BIND": f"127.0.0.{number + 1}",
            "LIGHTKEEPER_RUN_DIR": self.run_dir(number),
        }  # fmt: skip

    def start_monitor(self, store: str) -> None:
        words = ("--tick", "0.5", "--store", str(self.folder / store), "--no-token", "--observe")
        self.monitor = Monitor(*words, "--lighthouse", self.lighthouse, port=self.port, **self.own)
        self.monitor.ready()

    def end_monitor(self, number: signal.Signals) -> None:
        self.monitor.end(number)

    def torchft(self, act: str) -> list[Launch]:
        """A job of two groups."""
        groups = [Launch(self, act, group=str(group), ranks=1) for group in range(2)]
        self.watches(*groups)
        return groups

    def ranks(self) -> dict[int, str]:
        """Process -> health, of all that are watched."""
        return {row["pid"]: row["health"] for row in self.monitor.get("/v1/ranks")["ranks"]}

    def watches(self, *launches: Launch) -> None:
        """Wait until exactly these train under the monitor's eyes."""
        pids = {pid for launch in launches for pid in launch.pids}

        def so() -> bool:
            ranks = self.ranks()
            return ranks.keys() == pids and set(ranks.values()) == {"healthy"}

        try:
            wait_for(so, within_s=60, what="these are watched and healthy")
        except AssertionError as exc:
            seen = f"{pids} are to be watched: {self.ranks()}\n{''.join(self.monitor.lines)}"
            lines = self.monitor.call("GET", "/metrics").text.splitlines()
            seen += "\n".join(line for line in lines if "refused" in line)
            for launch in launches:
                launch.send(signal.SIGKILL)
                seen += launch.ended()
            raise AssertionError(seen) from exc

    def incidents(self) -> dict[str, list[str]]:
        """Run -> what fired in it: kind and suspects."""
        by_run: dict[str, list[str]] = {}
        for row in self.monitor.get("/v1/incidents")["incidents"]:
            if any(line["to"] == "firing" for line in row["story"]):
                names = " ".join((row["kind"], *row["culprits"], *row["candidates"]))
                by_run.setdefault(row["run"], []).append(names)
                self.said.add(f"{row['run']}: {row['reason']}")
        return by_run

    def run(self) -> str:
        return str(self.monitor.get("/v1/runs")["runs"][0]["id"])

    def headline(self) -> str:
        return str(self.monitor.get("/v1/snapshot")["headline"]["text"])


@pytest.fixture
def lighthouse(tmp_path: Path) -> Iterator[str]:
    """Up all day, with a memory of its own of the last run's groups."""
    with lighthouse_process(
        installations()["0.2.0"], tmp_path / "lighthouse.py", free_port(),
        min_replicas=1, join_timeout_ms=5000, heartbeat_timeout_ms=1500,
    ) as url:  # fmt: skip
        yield url


@pytest.fixture
def day(tmp_path: Path, lighthouse: str) -> Iterator[Day]:
    day = Day(tmp_path, lighthouse)
    try:
        yield day
    finally:
        for launch in day.launches:
            for rank in launch.ranks:
                rank.kill()
                rank.wait(20)
        day.end_monitor(signal.SIGTERM)


def fires(day: Day, run: str, what: str) -> None:
    wait_for(lambda: what in day.incidents().get(run, []), within_s=60, what=f"{what} in {run}")


def test_ten_runs_in_a_row_each_fault_under_its_run_and_none_about_a_healthy_one(day: Day) -> None:
    def healthy(**more: Any) -> Launch:
        launch = Launch(day, "ends", **more)
        day.watches(launch)
        return launch

    def over(launch: Launch | list[Launch], end: Callable[[Launch], object]) -> None:
        launches = launch if isinstance(launch, list) else [launch]
        for each in launches:
            end(each)
        for each in launches:
            each.ended()

    def killed_by(number: signal.Signals) -> Callable[[Launch], None]:
        return lambda launch: launch.send(number)

    port = str(free_port())
    over(healthy(MASTER_PORT=port), Launch.go_on)
    again = healthy(MASTER_PORT=port)  # the same address: only time tells them apart
    over(again, killed_by(signal.SIGTERM))
    hangs = Launch(day, "hangs")
    day.watches(hangs)
    hangs.go_on()
    hung = day.run()
    wait_for(lambda: day.incidents().get(hung), within_s=60, what="the hang is named")
    over(hangs, killed_by(signal.SIGKILL))
    lost = day.torchft("crashes")
    bereft = day.run()
    for launch in lost:
        launch.go_on()
    fires(day, bereft, "dead train_1.0")
    over(lost, killed_by(signal.SIGTERM))
    crashes = Launch(day, "crashes")
    day.watches(crashes)
    crashed = day.run()
    crashes.go_on()
    fires(day, crashed, "dead job.1")
    over(crashes, killed_by(signal.SIGTERM))
    day.end_monitor(signal.SIGTERM)
    day.start_monitor("day.db")  # goes on with what it knew, and the dead of the last run linger
    groups = day.torchft("ends")
    restarted = day.run()
    over(groups[1], killed_by(signal.SIGTERM))
    groups[1] = Launch(day, "ends", group="1", ranks=1)
    day.watches(*groups)
    assert day.run() == restarted  # a group that restarts beside another stays in its run
    over(groups, Launch.go_on)
    hosts = healthy(ranks=4, hosts=2)
    killed = {restarted, day.run()}
    over(hosts, killed_by(signal.SIGKILL))
    kept = healthy()
    second = Launch(day, "ends")
    wait_for(lambda: any("not watched" in line for line in day.monitor.lines), within_s=60,
             what="the second run at once is refused aloud")  # fmt: skip
    day.watches(kept)
    over(kept, Launch.go_on)
    day.watches(second)
    over(second, Launch.go_on)
    last = healthy()
    by_run = day.incidents()
    for run in killed:
        by_run.pop(run, None)  # who was killed from outside is dead, and that may be said
    accused = [name.split()[1:] for name in by_run.pop(hung)]  # its end by SIGKILL is nobody's
    assert [names for names in accused if names] == [["job.1"]]
    true = {crashed: ["dead job.1"], bereft: ["dead train_1.0"]}
    runs = day.monitor.get("/v1/runs")["runs"]
    rows = [f"{row['id']}: {row['ranks']} ranks from {row['began_s']:.1f}" for row in runs]
    assert by_run == true, "\n".join((*sorted(day.said), *rows, f"killed: {killed}"))
    assert [row["ranks"] for row in runs] == [2, 2, 2, 4, 2, 2, 2, 2, 2, 2]
    assert day.headline().startswith("Training: all 2 ranks are healthy")
    over(last, Launch.go_on)


def test_a_fresh_monitor_between_two_runs_hears_the_last_ones_dead_and_says_nothing(
    day: Day,
) -> None:
    for launch in day.torchft("ends"):
        launch.send(signal.SIGTERM)
        launch.ended()
    day.end_monitor(signal.SIGKILL)
    day.start_monitor("another.db")
    new = Launch(day, "ends")
    day.watches(new)

    def refused() -> bool:
        lines = day.monitor.call("GET", "/metrics").text.splitlines()
        name = 'lightkeeper_registrations_refused_total{reason="over"}'
        return any(float(line.split()[-1]) >= 2 for line in lines if line.startswith(name))

    wait_for(refused, within_s=60, what="both dead ranks have asked")
    day.watches(new)
    assert day.incidents() == {}
