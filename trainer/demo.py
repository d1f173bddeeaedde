"""`lightkeeper demo`: a real fleet on one machine, faults in it one after another, what each cost.

Belongs here: starting the processes that users start themselves (Lighthouse, monitor, one
supervisor with its torchrun per replica group), injecting faults, reading the monitor's API,
reporting. Does not belong here: anything that a real job needs, because users would lack it there.
The demo talks to the monitor over HTTP only.

Every time is measured where it happens: the injection by the trainer that fails, the rest by the
monitor. Both run on this machine and use one clock.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Final

import requests

from lightkeeper.trainer import faults, status
from lightkeeper.trainer.options import option, parser_of
from lightkeeper.trainer.supervisor import end_session, spawn
from lightkeeper.worker_server import home

_PYTHON: Final = (sys.executable, "-P", "-m")

# -- The demo's command line ----------------------------------------------------------------------


LEAVES: Final = {"crash": "dead", "mismatch:size": "mismatch"}
"""Faults that end the group before anybody can evict it, and the kind of their incident."""

_EPILOG = """\
faults:
{faults}

examples:
  lightkeeper demo                                  3 groups x 1 rank: gil, then slow
  lightkeeper demo --fault stop --format json       one JSON object, last on stdout
  lightkeeper demo --keep-running                   leaves all up, with URLs to curl

exit status: 0 every fault was found, the right group was evicted and training continued; 1 it was
not so; 2 wrong usage; 130 interrupted.
"""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    faults: Sequence[str] = option(
        "fault to inject; repeat for several (default: gil, slow, and mismatch where groups have "
        "2 ranks)",
        flag="--fault", action="append", choices=sorted(faults.KINDS), metavar="KIND",
    )  # fmt: skip
    groups: int = option(
        "replica groups, 2 to 8 (default: 3, or 2 when groups have several ranks)", least=2, most=8
    )
    ranks_per_group: int = option("ranks in each group, 1 to 4", 1, least=1, most=4)
    gate: bool = option("groups reach the Lighthouse through `lightkeeper gate`", default=False)
    format: str = option("json: one object on stdout", "text", choices=("text", "json"))
    keep_running: bool = option("stay up until Ctrl-C, and say where to look", default=False)
    run_dir: Path | None = option(
        "where logs, store and token go (default: a new folder under /tmp)", metavar="DIR"
    )
    step_time_s: float = option(
        "shortest time of a training step, 0 to 5 (default: 0.2, calm on 2 cores)", 0.2, most=5
    )

    @property
    def min_replicas(self) -> int:
        """Fewest groups that may train: all but one, and at most two."""
        return min(2, self.groups - 1)


def demo_options(argv: Sequence[str] | None = None) -> DemoOptions:
    """Options from the command line; wrong ones end the process with status 2."""
    listed = "\n".join(f"  {name:<15}{says}" for name, says in faults.KINDS.items())
    about = (
        "Start a TorchFT fleet on this machine and make a rank sick. Then watch lightkeeper name "
        "it and evict its group\nthrough the Lighthouse, and training continue."
    )
    parser = parser_of(DemoOptions, "lightkeeper demo", about, _EPILOG.format(faults=listed))
    args = parser.parse_args(argv)
    several = args.ranks_per_group > 1
    args.faults = args.faults or ["gil", "slow", *(["mismatch"] if several else [])]
    args.groups = args.groups or (2 if several else 3)
    if any(fault.startswith("mismatch") for fault in args.faults) and not several:
        parser.error(
            "--fault mismatch needs a collective inside the group: add --ranks-per-group 2"
        )
    if "corrupt" in args.faults and args.groups < 3:
        parser.error(
            "--fault corrupt in two groups: who of two is right cannot be told; add --groups 3"
        )
    return DemoOptions(**vars(args))


# -- What the demo reads from the monitor, over HTTP like any client ------------------------------


class MonitorAwayError(RuntimeError):
    """The monitor did not answer, or not in JSON."""


class MonitorClient:
    """The few reads of the monitor's API that the demo needs."""

    def __init__(self, url: str) -> None:
        self._url = url

    def snapshot(self) -> dict[str, Any]:
        return self._get("/v1/snapshot")

    def incidents(self) -> list[dict[str, Any]]:
        """All incidents, newest first."""
        return list(self._get("/v1/incidents")["incidents"])

    def _get(self, path: str) -> dict[str, Any]:
        try:
            answer = home.ask("GET", f"{self._url}{path}", timeout=5)
            answer.raise_for_status()
            return dict(answer.json())
        except (requests.RequestException, ValueError) as exc:
            raise MonitorAwayError(f"{self._url}{path}: {exc}") from exc


def unhealthy(snapshot: dict[str, Any], groups: int, ranks_per_group: int) -> str | None:
    """Why the fleet is not yet whole and committing, or None when it is.

    Whole means: every rank is there and has committed within the last five seconds, in its present
    life and in one quorum of all groups; and no incident is open.
    """
    ranks = snapshot["ranks"]
    if len(ranks) < groups * ranks_per_group:
        return f"{len(ranks)} of {groups * ranks_per_group} ranks registered"
    for rank in ranks:
        commits, age = rank.get("commits") or 0, rank.get("last_commit_age_s")
        if rank["health"] not in ("healthy", "waiting"):
            return f"{rank['rank']} is {rank['health']}"
        if commits < 5 or age is None or age > 5:  # past the first, slow steps
            return f"{rank['rank']} has {commits} commits"
        if rank.get("participants") != groups:
            return f"{rank['rank']} sees {rank.get('participants')} of {groups} groups"
    open_incidents = [item for item in snapshot["incidents"] if item["state"] != "pending"]
    if open_incidents:
        return f"{open_incidents[0]['kind']} of {open_incidents[0]['culprits']} is open"
    return None


# -- the processes --------------------------------------------------------------------------------

SHUTDOWN_GRACE_S: Final = 15.0


class FleetError(RuntimeError):
    """The fleet could not start or died; the message says which part, and its log."""


@dataclass
class DemoFleet:
    """A running fleet. Made by `start_fleet`."""

    options: DemoOptions
    run_dir: Path
    lighthouse: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")
    """TorchFT's."""
    gate: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")
    """Used by the groups instead, with `--gate`."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.monitor_url = f"http://127.0.0.1:{free_port()}"
        self.monitor = MonitorClient(self.monitor_url)
        self.token_file = self.run_dir / "token"
        self.fault_file = self.run_dir / "fault.json"
        self.events_file = self.run_dir / "events.jsonl"
        self.groups = tuple(f"rg_{index}" for index in range(self.options.groups))

    def inject(self, kind: str, rank: str, step: int | None = None) -> str:
        """Ask the trainer of `rank` to fail at a step, or at its next; returns the fault's id."""
        fault_id = f"{len(faults.markers(self.fault_file)) + 1}-{kind}"
        fault = faults.PlannedFault(fault_id, kind, rank, step, factor=6.0)
        faults.inject(self.fault_file, fault)
        return fault_id

    def left(self, since_s: float) -> list[str]:
        """Groups of which a launch ended after that (unix time)."""
        events = status.read_events(self.events_file)
        after = [event for event in events if event["time"] >= since_s]
        return sorted({event["group"] for event in after if event["event"] == "left"})

    def attempts(self, limit_s: float, every_s: float) -> Iterator[None]:
        """One attempt after the other until the limit, while every process runs.

        Raises:
            FleetError: one ended.
        """
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    what = f"{name} ended with status {process.returncode}"
                    raise FleetError(f"{what} (log: {self._log(name)})")
            yield
            time.sleep(every_s)

    def _log(self, name: str) -> Path:
        return self.run_dir / "logs" / f"{name}.log"

    def spawn(self, name: str, *command: object) -> None:
        """Start one process with its output in a log; it ends when we do, however we end."""
        asked = self.gate if self.options.gate else self.lighthouse
        environment = {
            # At their default level, info, Lighthouse and ranks log every request: 6 KB/s.
            "RUST_LOG": "warn",
            **os.environ,
            "TORCHFT_LIGHTHOUSE": f"http://{asked}",
            "LIGHTKEEPER_MONITOR": self.monitor_url,
            "LIGHTKEEPER_TOKEN_FILE": str(self.token_file),
            "LIGHTKEEPER_RUN_DIR": str(self.run_dir / "run"),
            "LIGHTKEEPER_JOB": "demo",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        self.processes[name] = spawn([str(word) for word in command], environment, self._log(name))

    def start(self) -> None:
        """Start the Lighthouse, the gate if there is one, the monitor, and a supervisor a group."""
        program = Path(sys.executable).with_name("torchft_lighthouse")
        if not program.exists():
            raise FleetError(
                f"TorchFT is not installed beside {sys.executable}: pip install torch==2.13.0 "
                "'lightkeeper[trainer]' (or run `make demo`)"
            )
        options, keeper = self.options, (*_PYTHON, "lightkeeper")
        at = f"[::]:{self.lighthouse.rpartition(':')[2]}"
        self.spawn("lighthouse", program, "--bind", at, "--min_replicas", options.min_replicas)
        upstream = _flags(lighthouse=f"http://{self.lighthouse}")
        if options.gate:
            admin = f"127.0.0.1:{free_port()}"
            self.spawn("gate", *keeper, "gate", *upstream, *_flags(bind=self.gate, admin=admin))
            upstream += _flags(gate=f"http://{admin}")
        of_monitor = _flags(
            bind=self.monitor_url.removeprefix("http://"),
            store=self.run_dir / "lightkeeper.sqlite3",
            min_replicas=options.min_replicas,
            budget=len(options.faults) + 2,
        )
        self.spawn("monitor", *keeper, "monitor", *upstream, *of_monitor)
        of_ranks = _flags(
            steps=0,
            step_time=options.step_time_s,
            min_replicas=options.min_replicas,
            fault_file=self.fault_file,
        )
        for index, group in enumerate(self.groups):
            # A quarantined host is never used again, so each fault may cost one.
            spares = [f"spare-{index}{chr(ord('a') + n)}" for n in range(len(options.faults) + 1)]
            of_supervisor = _flags(
                group=group,
                hosts=",".join([f"host-{index}", *spares]),
                nproc=options.ranks_per_group,
                status_file=self.events_file,
            )
            module = "lightkeeper.trainer.supervisor"
            self.spawn(f"supervisor-{group}", *_PYTHON, module, *of_supervisor, "--", *of_ranks)

    def stop(self) -> None:
        """End every process, supervisors first: they end their ranks and sidecars."""
        for first in ("supervisor-", ""):
            names = [name for name in self.processes if name.startswith(first)]
            ending = [self.processes.pop(name) for name in names]
            for process in ending:
                process.terminate()
            for process in ending:
                end_session(process, SHUTDOWN_GRACE_S)


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def start_fleet(options: DemoOptions, run_dir: Path) -> Iterator[DemoFleet]:
    """Start all processes; end them however the block ends."""
    for folder in ("logs", "run"):
        (run_dir / folder).mkdir(parents=True, exist_ok=True)
    (run_dir / "run").chmod(0o700)
    fleet = DemoFleet(options, run_dir)
    fleet.token_file.touch(mode=0o600)
    fleet.token_file.write_text(secrets.token_urlsafe(24))
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.stop()


def _flags(**values: object) -> list[str]:
    """`step_time=0.2` as `--step-time 0.2`."""
    pairs = [("--" + name.replace("_", "-"), str(value)) for name, value in values.items()]
    return [word for pair in pairs for word in pair]


# -- one fault -------------------------------------------------------------------------------

START_LIMIT_S: Final = 180.0
STRIKE_LIMIT_S: Final = 60.0
KEEPER_LIMIT_S: Final = 150.0
POLL_S: Final = 0.5
EQUAL_STEPS: Final = 20
"""Two fingerprints at their default distance."""
MILESTONES: Final = ("firing", "evict_asked", "left_quorum", "survivor_commit", "rejoined")
"""Moments of the monitor's incident."""

Row = dict[str, Any]
"""An object of the monitor's JSON, or of ours."""


class DemoLog:
    """Reports the demo's progress. Writes to stderr only: stdout is for results."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._last = ""

    def say(self, text: str) -> None:
        """One line, if it is not the last one again."""
        if text != self._last:
            since_s = time.monotonic() - self._began_s
            print(f"{since_s:6.1f} s  {text}", file=sys.stderr, flush=True)
        self._last = text


def _looks(fleet: DemoFleet, limit_s: float) -> Iterator[tuple[Row, list[Row]]]:
    """The monitor's snapshot and incidents, polled until the limit, while it answers.

    Raises:
        FleetError: a process of the demo ended.
    """
    for _ in fleet.attempts(limit_s, POLL_S):
        with contextlib.suppress(MonitorAwayError):
            seen = fleet.monitor.snapshot(), fleet.monitor.incidents()
            yield seen


def wait_until_whole(fleet: DemoFleet, log: DemoLog, limit_s: float) -> None:
    """Wait until every rank of every group commits and no incident is open.

    Raises:
        FleetError: a process of the demo ended, or the fleet was not whole in time.
    """
    why: str | None = "the monitor did not answer"
    for snapshot, _ in _looks(fleet, limit_s):
        why = unhealthy(snapshot, fleet.options.groups, fleet.options.ranks_per_group)
        if why is None:
            return
        log.say(f"waiting for a whole fleet: {why}")
    raise FleetError(
        f"the fleet was not whole within {limit_s:.0f} s: {why} (logs: {fleet.run_dir})"
    )


def run_fault(fleet: DemoFleet, kind: str, rank: str, log: DemoLog) -> Row:
    """Inject one fault and follow it until the group is back, or the limit; returns its report."""
    log.say(f"injecting {kind} into {rank}: {faults.KINDS[kind]}")
    earlier = {incident["id"] for incident in fleet.monitor.incidents()}
    # Weights must have been seen to be equal before one that differs can be recognised.
    best_step = max((row.get("step") or 0 for row in fleet.monitor.snapshot()["ranks"]), default=0)
    step = best_step + EQUAL_STEPS if kind == "corrupt" else None
    fault_id = fleet.inject(kind, rank, step)
    for _ in fleet.attempts(STRIKE_LIMIT_S, 0.1):
        if marks := [mark for mark in faults.markers(fleet.fault_file) if mark.id == fault_id]:
            break
    else:
        raise FleetError(
            f"{kind} did not strike {rank} within {STRIKE_LIMIT_S:.0f} s: is it training?"
        )
    report = report_of(marks[0], [], [])
    for _, listed in _looks(fleet, KEEPER_LIMIT_S):
        incidents = [incident for incident in listed if incident["id"] not in earlier]
        report = report_of(marks[0], incidents, fleet.left(marks[0].time))
        log.say(fault_sentence(report))
        if report["to_rejoined"] is not None and report["to_survivor_commit"] is not None:
            break
    return report


def report_of(struck: faults.Marker, incidents: list[Row], left: Sequence[str]) -> Row:
    """The outcome of one fault so far. Times are seconds after the injection; None: did not happen.

    Its incident is the evicting one, else the first to fire. `left`: groups of which a launch ended
    after it.
    """

    def at_s(incident: Row, name: str) -> Any:
        return incident["milestones"].get(f"{name}_s")

    def to_s(at_s: float | None) -> float | None:
        return None if at_s is None else round(at_s - struck.time, 3)

    evicting = [item for item in incidents if at_s(item, "evict_asked") is not None]
    fired = [item for item in incidents if at_s(item, "firing") is not None]
    order = [(item not in evicting, item["kind"] != LEAVES.get(struck.kind), at_s(item, "firing"))
             for item in fired]  # fmt: skip
    chosen: Row = fired[order.index(min(order))] if fired else {"milestones": {}}
    report = {
        "kind": struck.kind,
        "target_rank": struck.rank,
        "target_group": struck.rank.rpartition(".")[0],
        "incident": chosen.get("id"),
        "culprit_ranks": chosen.get("culprits", []),
        "evicted_groups": sorted({group for item in evicting for group in item["groups"]}),
        **{f"to_{name}": to_s(at_s(chosen, name)) for name in MILESTONES},
        "rejoined_host": next(iter(chosen.get("back_on", ())), None),
    }
    return {**report, "problems": list(_problems(report, left))}


def _problems(report: Row, left: Sequence[str]) -> Iterator[str]:
    """What the monitor did wrong, and what it did not achieve."""
    rank, culprits, target = report["target_rank"], report["culprit_ranks"], report["target_group"]
    if report["to_firing"] is None:
        yield "not found"
    elif culprits != [rank]:
        yield f"accused {', '.join(culprits)}, not {rank}"
    if healthy := [group for group in report["evicted_groups"] if group != target]:
        yield f"evicted the healthy {', '.join(healthy)}"
    if crashed := [group for group in left if group != target]:
        yield f"{', '.join(crashed)} crashed, too"
    if report["to_survivor_commit"] is None:
        yield "training did not go on"
    if report["kind"] not in LEAVES and target not in report["evicted_groups"]:
        yield "not evicted"
    if report["to_rejoined"] is None:
        yield "the group did not come back"


def fault_sentence(report: Row) -> str:
    """What happened of a fault so far; seconds after the injection."""
    times = ((name.replace("_", " "), report[f"to_{name}"]) for name in MILESTONES)
    done = ", ".join(f"{name} +{time_s:.1f} s" for name, time_s in times if time_s is not None)
    return f"{report['kind']} in {report['target_rank']}: {done or 'nothing seen yet'}"


def fault_verdict(report: Row) -> str:
    """The sentence, and what the monitor did wrong."""
    return f"{fault_sentence(report)}; {', '.join(report['problems']) or 'right'}"


# -- the run ---------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    options = demo_options(argv)
    run_dir = options.run_dir or Path(tempfile.mkdtemp(prefix="lightkeeper-demo-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        reports = _run_fleet(options, run_dir.resolve())
    except (OSError, FleetError, MonitorAwayError) as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted, everything was stopped", file=sys.stderr)
        return 130
    ok = not any(report["problems"] for report in reports)
    if options.format == "json":
        print(json.dumps({"ok": ok, "faults": reports}))
    else:
        print(*map(fault_verdict, reports), sep="\n")
    return 0 if ok else 1


def _run_fleet(options: DemoOptions, run_dir: Path) -> list[Row]:
    reports: list[Row] = []
    log = DemoLog()
    with start_fleet(options, run_dir) as fleet:
        log.say(
            f"starting {options.groups} groups x {options.ranks_per_group} ranks; logs in {run_dir}"
        )
        for number, kind in enumerate(options.faults, 1):
            wait_until_whole(fleet, log, START_LIMIT_S)
            log.say(f"whole: every rank commits. Monitor: {fleet.monitor_url}")
            # Another group for each fault, and its last rank, which hosts no TorchFT manager.
            rank = f"rg_{number % options.groups}.{options.ranks_per_group - 1}"
            reports.append(report := run_fault(fleet, kind, rank, log))
            if (incident := report["incident"]) is not None:
                command = [*_PYTHON, "lightkeeper", "incidents", "show", incident]
                command += _flags(monitor=fleet.monitor_url)
                subprocess.run(command, check=False, stdout=sys.stderr)
        if options.keep_running:
            log.say(
                f"everything stays up until Ctrl-C; open {fleet.monitor_url}/, or curl it: it says "
                f"what else to ask; the token is in {fleet.token_file}"
            )
            with contextlib.suppress(KeyboardInterrupt):
                for _ in fleet.attempts(inf, 1):
                    pass
    return reports


if __name__ == "__main__":
    sys.exit(main())
