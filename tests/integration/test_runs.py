"""A day of a user at one monitor: runs one after the other, and two at once, mostly unnamed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.monitor.process import Monitor, environment
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
            time.sleep(0.005)
    reporter.step(step := step + 1)
"""


class Launch:
    """What a launcher starts: the ranks of one group, on this host or on several."""

    def __init__(self, day: Day, act: str, *, ranks: int = 2, group: str = "", hosts: int = 1,
                 **more: str) -> None:  # fmt: skip
        self.after = day.folder / f"after-{len(day.launches)}"
        master = more.pop("MASTER_PORT", str(free_port()))
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, act, str(self.after)],
                env=environment(**{
                    "RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": master, "LIGHTKEEPER_MONITOR": day.monitor.url, **day.own,
                    **({"REPLICA_GROUP": group} if group else {}),
                    **(day.host(rank % hosts) if hosts > 1 else {}), **more,
                }),
                stderr=subprocess.PIPE, text=True,
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
        return "".join(rank.communicate(timeout=60)[1] for rank in self.ranks)


class Day:
    """The monitor, and what was launched."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.launches, self.said = folder, list[Launch](), set[str]()
        self.own = {
            "XDG_STATE_HOME": str(folder / "state"), "LIGHTKEEPER_RUN_DIR": self.run_dir(0),
            "LIGHTKEEPER_LINGER_S": "60",
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
        self.monitor = Monitor(*words, port=self.port, **self.own)
        self.monitor.ready()

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
def day(tmp_path: Path) -> Iterator[Day]:
    day = Day(tmp_path)
    try:
        yield day
    finally:
        for launch in day.launches:
            for rank in launch.ranks:
                rank.kill()
                rank.wait(20)
                rank.stderr.close()
        day.monitor.process.terminate()
        day.monitor.process.wait(30)
        day.monitor.process.stderr.close()


def fires(day: Day, run: str, what: str) -> None:
    wait_for(lambda: what in day.incidents().get(run, []), within_s=60, what=f"{what} in {run}")


def test_twelve_runs_in_a_row_each_fault_under_its_run_and_none_about_a_healthy_one(
    day: Day,
) -> None:
    killed = list[str]()

    def healthy(**more: Any) -> Launch:
        launch = Launch(day, "ends", **more)
        day.watches(launch)
        return launch

    def over(launch: Launch, end: Callable[[], object]) -> None:
        end()
        launch.ended()

    port = str(free_port())
    first = healthy(MASTER_PORT=port)
    over(first, first.go_on)
    again = healthy(MASTER_PORT=port)  # the same address: only time tells them apart
    over(again, lambda: again.send(signal.SIGTERM))
    hangs = Launch(day, "hangs")
    day.watches(hangs)
    hangs.go_on()
    hung = day.run()
    wait_for(lambda: day.incidents().get(day.run()), within_s=60, what="the hang is named")
    over(hangs, lambda: hangs.send(signal.SIGKILL))
    alone = healthy(ranks=1)
    over(alone, alone.go_on)
    crashes = Launch(day, "crashes")
    day.watches(crashes)
    crashed = day.run()
    crashes.go_on()
    fires(day, day.run(), "dead job.1")
    crashes.send(signal.SIGTERM)
    crashes.ended()
    interrupted = healthy()
    over(interrupted, lambda: interrupted.send(signal.SIGINT))
    groups = [Launch(day, "ends", group=f"rg_{n}", ranks=1) for n in range(2)]
    day.watches(*groups)
    run = day.run()
    over(groups[1], lambda: groups[1].send(signal.SIGTERM))
    groups[1] = Launch(day, "ends", group="rg_1", ranks=1)
    day.watches(*groups)
    assert day.run() == run  # a group that restarts beside another stays in its run
    for launch in groups:
        over(launch, lambda launch=launch: launch.send(signal.SIGTERM))
    hosts = healthy(ranks=4, hosts=2)
    over(hosts, hosts.go_on)
    killed.append(run)
    eight = healthy(ranks=8)
    killed.append(day.run())
    over(eight, lambda: eight.send(signal.SIGKILL))
    kept = healthy()
    second = Launch(day, "ends")
    wait_for(lambda: any("not watched" in line for line in day.monitor.lines), within_s=60,
             what="the second run at once is refused aloud")  # fmt: skip
    day.watches(kept)
    over(kept, kept.go_on)
    day.watches(second)
    over(second, second.go_on)
    last = healthy()
    by_run = day.incidents()
    for run in killed:
        by_run.pop(run, None)  # who was killed from outside is dead, and that may be said
    accused = [name.split()[1:] for name in by_run.pop(hung)]  # its end by SIGKILL is nobody's
    assert [names for names in accused if names] == [["job.1"]]
    assert by_run == {crashed: ["dead job.1"]}, "\n".join(sorted(day.said))
    runs = day.monitor.get("/v1/runs")["runs"]
    assert len(runs) == 12
    assert [row["ranks"] for row in runs] == [2, 2, 2, 8, 4, 2, 2, 2, 1, 2, 2, 2]
    assert day.headline().startswith("Training: all 2 ranks are healthy")
    over(last, last.go_on)


def test_a_fresh_monitor_between_two_runs_hears_the_last_ones_dead_and_says_nothing(
    day: Day,
) -> None:
    groups = [Launch(day, "ends", group=f"train_{n}", ranks=1) for n in range(2)]
    day.watches(*groups)
    for launch in groups:
        launch.send(signal.SIGTERM)
        launch.ended()
    day.monitor.process.kill()
    day.monitor.process.wait(30)
    day.monitor.process.stderr.close()
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
