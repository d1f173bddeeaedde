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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

import requests

from lightkeeper.trainer import faults, status
from lightkeeper.trainer.options import option, parser_of
from lightkeeper.trainer.supervisor import end_session, spawn
from lightkeeper.worker_server import home

_PYTHON: Final = (sys.executable, "-P", "-m")

# -- The demo's command line ----------------------------------------------------------------------


class DemoFault(NamedTuple):
    incident: str
    """Kind of the monitor's incident."""
    leaves: bool = False
    """True if it ends the group before anybody can evict it."""


FAULTS: Final = {
    "hang": DemoFault("not_entered"),
    "gil": DemoFault("not_entered"),
    "stop": DemoFault("not_entered"),
    "crash": DemoFault("dead", leaves=True),
    "slow": DemoFault("straggler"),
    "mismatch": DemoFault("mismatch"),
    "nan": DemoFault("state_corrupt"),
    "corrupt": DemoFault("state_corrupt"),
    "mismatch:size": DemoFault("mismatch", leaves=True),
}

_EPILOG = """\
faults:
{faults}

examples:
  lightkeeper demo                                  3 groups x 1 rank: gil, then slow
  lightkeeper demo --groups 2 --ranks-per-group 2   gil, slow, mismatch
  lightkeeper demo --fault stop --format json       one JSON object, last on stdout
  lightkeeper demo --gate --fault stop              with the gate in front of the Lighthouse
  lightkeeper demo --keep-running                   leaves all up, with URLs to curl
  lightkeeper demo --port 8470 --keep-running       where `lightkeeper status` looks

exit status: 0 every fault was found, the right group was evicted and training continued; 1 it was
not so; 2 wrong usage; 130 interrupted.
"""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    faults: tuple[str, ...] = option(
        "fault to inject; repeat for several (default: gil, slow, and mismatch where groups have "
        "2 ranks)",
        flag="--fault", action="append", choices=sorted(FAULTS), metavar="KIND",
    )  # fmt: skip
    groups: int = option(
        "replica groups, 2 to 8 (default: 3, or 2 when groups have several ranks)", least=2, most=8
    )
    ranks_per_group: int = option("ranks in each group, 1 to 4", 1, least=1, most=4)
    gate: bool = option(
        "groups reach the Lighthouse through `lightkeeper gate`, which can keep them out",
        default=False,
    )
    format: str = option(
        "json: one object, last on stdout; progress goes to stderr",
        "text",
        choices=("text", "json"),
    )
    port: int = option(
        "of the monitor; 8470 is where the shipped Prometheus configuration, `lightkeeper status` "
        "and the other commands look (default: a free one)", 0, least=0, most=65_535,
    )  # fmt: skip
    keep_running: bool = option(
        "leave everything up afterwards until Ctrl-C, and print what to curl", default=False
    )
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
        "Start a TorchFT fleet on this machine, make a rank sick, and watch lightkeeper name it, "
        "evict its group through the Lighthouse, and training continue."
    )
    parser = parser_of(DemoOptions, "lightkeeper demo", about, _EPILOG.format(faults=listed))
    args = parser.parse_args(argv)
    several = args.ranks_per_group > 1
    args.faults = tuple(
        args.faults or (("gil", "slow", "mismatch") if several else ("gil", "slow"))
    )
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

    def _get(self, path: str) -> dict[str, Any]:
        try:
            answer = home.ask("GET", f"{self._url}{path}", timeout=5)
            answer.raise_for_status()
            return dict(answer.json())
        except (requests.RequestException, ValueError) as exc:
            raise MonitorAwayError(f"{self._url}{path}: {exc}") from exc

    def snapshot(self) -> dict[str, Any]:
        return self._get("/v1/snapshot")

    def incidents(self) -> list[dict[str, Any]]:
        """All incidents, newest first."""
        return list(self._get("/v1/incidents")["incidents"])


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


def _loopback(port: int = 0) -> str:
    """A URL on this port, or on a free one."""
    return f"http://127.0.0.1:{port or free_port()}"


@dataclass
class DemoFleet:
    """A running fleet. Made by `start_fleet`."""

    options: DemoOptions
    run_dir: Path
    lighthouse_url: str = field(default_factory=_loopback)
    """TorchFT's."""
    gate_url: str = field(default_factory=_loopback)
    """Used by the groups instead, with `--gate`."""
    gate_admin_url: str = field(default_factory=_loopback)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.monitor_url = _loopback(self.options.port)
        self.monitor = MonitorClient(self.monitor_url)
        self.token_file = self.run_dir / "token"
        self.fault_file = self.run_dir / "fault.json"
        self.groups = tuple(f"rg_{index}" for index in range(self.options.groups))

    def inject(self, kind: str, rank: str, step: int | None = None) -> str:
        """Ask the trainer of `rank` to fail at a step, or at its next; returns the fault's id."""
        fault_id = f"{len(faults.markers(self.fault_file)) + 1}-{kind}"
        fault = {"id": fault_id, "kind": kind, "rank": rank, "factor": 6.0, "step": step}
        faults.inject(self.fault_file, faults.parse_fault(fault))
        return fault_id

    def fired(self, fault_id: str) -> faults.Marker | None:
        """The trainer's marker of the fault, or None while it has not fired."""
        marks = faults.markers(self.fault_file)
        return next((mark for mark in marks if mark.id == fault_id), None)

    def left_s(self, group: str, since_s: float) -> float | None:
        """When a launch of the group first ended after that, unix time."""
        events = status.read_events(self.run_dir / "events" / f"{group}.jsonl")
        left = (event["time"] for event in events if event["event"] == "left")
        return next((at_s for at_s in left if at_s >= since_s), None)

    def print_story(self, incident: str) -> None:
        """What `lightkeeper incidents show` says, to stderr."""
        command = [*_PYTHON, "lightkeeper", "incidents", "show", incident]
        command += _flags(monitor=self.monitor_url)
        subprocess.run(command, check=False, stdout=sys.stderr)

    def attempts(self, limit_s: float, every_s: float) -> Iterator[None]:
        """One attempt after the other until the limit, while every process runs.

        Raises:
            FleetError: one ended; names it, its status, and its log with the last line.
        """
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    log = self._log(name)
                    lines = log.read_text(errors="replace").split("\n")
                    said = next(filter(str.strip, reversed(lines)), "no output").strip()
                    status = f"{name} ended with status {process.returncode}"
                    raise FleetError(f"{status}: {said} (log: {log})")
            yield
            time.sleep(every_s)

    def _log(self, name: str) -> Path:
        return self.run_dir / "logs" / f"{name}.log"

    def spawn(self, name: str, *command: object) -> None:
        """Start one process with its output in a log; it ends when we do, however we end."""
        environment = {
            # At their default level, info, Lighthouse and ranks log every request: 6 KB/s.
            "RUST_LOG": "warn",
            **os.environ,
            "TORCHFT_LIGHTHOUSE": self.gate_url if self.options.gate else self.lighthouse_url,
            **({"TORCHFT_QUORUM_RETRIES": "59"} if self.options.gate else {}),
            "LIGHTKEEPER_MONITOR": self.monitor_url,
            "LIGHTKEEPER_TOKEN_FILE": str(self.token_file),
            "LIGHTKEEPER_RUN_DIR": str(self.run_dir / "run"),
            "LIGHTKEEPER_JOB": "demo",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        self.processes[name] = spawn([str(word) for word in command], environment, self._log(name))

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
    for folder in ("logs", "events", "run"):
        (run_dir / folder).mkdir(parents=True, exist_ok=True)
    (run_dir / "run").chmod(0o700)
    fleet = DemoFleet(options, run_dir)
    fleet.token_file.touch(mode=0o600)
    fleet.token_file.write_text(secrets.token_urlsafe(24))
    try:
        start_lighthouse(fleet)
        if options.gate:
            start_gate(fleet)
        start_monitor(fleet)
        for group in fleet.groups:
            _start_group(fleet, group)
        yield fleet
    finally:
        fleet.stop()


def _flags(**values: object) -> list[str]:
    """`step_time=0.2` as `--step-time 0.2`."""
    pairs = [("--" + name.replace("_", "-"), str(value)) for name, value in values.items()]
    return [word for pair in pairs for word in pair]


def start_lighthouse(fleet: DemoFleet) -> None:
    """Start the Lighthouse, or start it again on the same port."""
    program = Path(sys.executable).with_name("torchft_lighthouse")
    if not program.exists():
        raise FleetError(
            f"TorchFT is not installed beside {sys.executable}: pip install torch==2.13.0 "
            "'lightkeeper[trainer]' (or run `make demo`)"
        )
    fleet.spawn(
        "lighthouse",
        program,
        *_flags(bind=f"[::]:{fleet.lighthouse_url.rpartition(':')[2]}"),
        # Its own options have underscores.
        *("--min_replicas", fleet.options.min_replicas),
    )


def start_gate(fleet: DemoFleet) -> None:
    """Start the gate in front of the Lighthouse, or start it again on the same ports."""
    flags = _flags(
        lighthouse=fleet.lighthouse_url,
        bind=fleet.gate_url.removeprefix("http://"),
        admin=fleet.gate_admin_url.removeprefix("http://"),
    )
    fleet.spawn("gate", *_PYTHON, "lightkeeper", "gate", *flags)


def start_monitor(fleet: DemoFleet) -> None:
    """Start the monitor, or start it again on the same store and port."""
    options = fleet.options
    flags = _flags(
        lighthouse=fleet.lighthouse_url,
        bind=fleet.monitor_url.removeprefix("http://"),
        store=fleet.run_dir / "lightkeeper.sqlite3",
        min_replicas=options.min_replicas,
        budget=len(options.faults) + 2,
        **({"gate": fleet.gate_admin_url} if options.gate else {}),
    )
    fleet.spawn("monitor", *_PYTHON, "lightkeeper", "monitor", *flags)


def _start_group(fleet: DemoFleet, group: str) -> None:
    options = fleet.options
    index = group.removeprefix("rg_")
    # A quarantined host is never used again, so each fault may cost one.
    spares = [f"spare-{index}{chr(ord('a') + n)}" for n in range(len(options.faults) + 1)]
    of_supervisor = _flags(
        group=group,
        hosts=",".join([f"host-{index}", *spares]),
        monitor=fleet.monitor_url,
        nproc=options.ranks_per_group,
        log_dir=fleet.run_dir / "logs",
        status_file=fleet.run_dir / "events" / f"{group}.jsonl",
    )
    of_ranks = _flags(
        steps=0,
        step_time=options.step_time_s,
        min_replicas=options.min_replicas,
        fault_file=fleet.fault_file,
    )
    module = "lightkeeper.trainer.supervisor"
    fleet.spawn(f"supervisor-{group}", *_PYTHON, module, *of_supervisor, "--", *of_ranks)


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
Show = Callable[[Row, str], None]
"""Shows a snapshot of the monitor and what the demo is waiting for."""


def _looks(fleet: DemoFleet, limit_s: float) -> Iterator[tuple[Row, list[Row]]]:
    """The monitor's snapshot and incidents, polled until the limit, while it answers.

    Raises:
        FleetError: a process of the demo ended.
    """
    for _ in fleet.attempts(limit_s, POLL_S):
        with contextlib.suppress(MonitorAwayError):
            seen = fleet.monitor.snapshot(), fleet.monitor.incidents()
            yield seen


def wait_until_whole(fleet: DemoFleet, show: Show, limit_s: float) -> None:
    """Wait until every rank of every group commits and no incident is open.

    Raises:
        FleetError: a process of the demo ended, or the fleet was not whole in time.
    """
    why: str | None = "the monitor did not answer"
    for snapshot, _ in _looks(fleet, limit_s):
        why = unhealthy(snapshot, fleet.options.groups, fleet.options.ranks_per_group)
        if why is None:
            return
        show(snapshot, f"waiting for a whole fleet: {why}")
    raise FleetError(
        f"the fleet was not whole within {limit_s:.0f} s: {why} (logs: {fleet.run_dir})"
    )


def run_fault(fleet: DemoFleet, kind: str, rank: str, show: Show) -> Row:
    """Inject one fault and follow it until the group is back, or the limit; returns its report."""
    earlier = {incident["id"] for incident in fleet.monitor.incidents()}
    # Weights must have been seen to be equal before one that differs can be recognised.
    best_step = max((row.get("step") or 0 for row in fleet.monitor.snapshot()["ranks"]), default=0)
    step = best_step + EQUAL_STEPS if kind == "corrupt" else None
    fault_id = fleet.inject(kind, rank, step)
    for _ in fleet.attempts(STRIKE_LIMIT_S, 0.1):
        marker = fleet.fired(fault_id)
        if marker is not None:
            break
        show(fleet.monitor.snapshot(), f"injecting {kind} into {rank}")
    else:
        raise FleetError(
            f"{kind} did not strike {rank} within {STRIKE_LIMIT_S:.0f} s: is it training?"
        )
    report = report_of(kind, marker, [], {})
    for snapshot, listed in _looks(fleet, KEEPER_LIMIT_S):
        incidents = [incident for incident in listed if incident["id"] not in earlier]
        left = {group: fleet.left_s(group, marker.time) for group in fleet.groups}
        report = report_of(kind, marker, incidents, left)
        show(snapshot, fault_sentence(report))
        if report["to_rejoined"] is not None and report["to_survivor_commit"] is not None:
            break
    return report


def _main_incident(kind: str, incidents: list[Row]) -> Row | None:
    """The incident that fired for this fault: the evicting one, else the first to fire."""
    fired = [item for item in incidents if item["milestones"].get("firing_s") is not None]
    return min(
        fired,
        key=lambda item: (
            not _evicting(item),
            item["kind"] != FAULTS[kind].incident,
            item["milestones"]["firing_s"],
        ),
        default=None,
    )


def _evicting(incident: Row) -> bool:
    return incident["milestones"].get("evict_asked_s") is not None


def report_of(
    kind: str, struck: faults.Marker, incidents: list[Row], left: dict[str, float | None]
) -> Row:
    """The outcome of one fault so far. Times are seconds after the injection; None: did not happen.

    `left`: when each group's launch first ended after it, unix time.
    """

    def after_s(at_s: float | None) -> float | None:
        return None if at_s is None else round(at_s - struck.time, 3)

    target = struck.rank.rpartition(".")[0]
    incident = _main_incident(kind, incidents)
    about: Row = incident or {"culprits": [], "groups": [], "milestones": {}, "account": {}}
    times = {f"to_{name}": after_s(about["milestones"].get(f"{name}_s")) for name in MILESTONES}
    account, group = about["account"], next(iter(about["groups"]), None)
    crashed = sorted(name for name, at_s in left.items() if at_s is not None and name != target)
    report = {
        "kind": kind,
        "target_rank": struck.rank,
        "target_group": target,
        "injected_s": round(struck.time, 3),
        "incident": about.get("id"),
        "culprit_ranks": about["culprits"],
        "culprit_group": group,
        "evicted_group": None if times["to_evict_asked"] is None else group,
        **times,
        "reason": about.get("reason"),
        "held": account["why"] if account.get("outcome") == "held" else None,
        "left_host": next(iter(about.get("hosts", ())), None),
        "rejoined_host": next(iter(about.get("back_on", ())), None),
        "survivors_crashed": crashed,
        "training_went_on": times["to_survivor_commit"] is not None and not crashed,
    }
    wrong = list(_wrong(report, incidents))
    return {**report, "correct": not wrong, "problems": [*wrong, *_failed(report)]}


def _wrong(report: Row, incidents: list[Row]) -> Iterator[str]:
    """What the monitor did wrong."""
    if report["to_firing"] is None:
        yield "not found"
    elif report["culprit_ranks"] != [report["target_rank"]]:
        yield f"accused {', '.join(report['culprit_ranks'])}, not {report['target_rank']}"
    evicted = {group for item in filter(_evicting, incidents) for group in item["groups"]}
    if evicted := evicted - {report["target_group"]}:
        yield f"evicted the healthy {', '.join(sorted(evicted))}"


def _failed(report: Row) -> Iterator[str]:
    """What it did not achieve."""
    if not report["training_went_on"]:
        yield "training did not go on"
    if not FAULTS[report["kind"]].leaves and report["evicted_group"] is None:
        yield f"not evicted ({report['held'] or 'no decision'})"
    if report["to_rejoined"] is None:
        yield "the group did not come back"


# -- what people see -------------------------------------------------------------------------

QUIET_LINE_S: Final = 20.0


class DemoLog:
    """Reports the demo's progress. Writes to stderr only: stdout is for results."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._last_line = ""
        self._last_line_s = 0.0

    def say(self, text: str) -> None:
        """One line."""
        print(f"{time.monotonic() - self._began_s:6.1f} s  {text}", file=sys.stderr, flush=True)

    def show(self, snapshot: dict[str, Any], waiting_for: str) -> None:
        """The fleet as it is now: a line when it changes, a short one when it long does not."""
        healths = [f"{rank['rank']} {rank['health']}" for rank in snapshot["ranks"]]
        line = f"{'  '.join(healths) or 'no ranks'} | {waiting_for}"
        since_s = time.monotonic() - self._last_line_s
        if line != self._last_line and since_s > 1:
            self._last_line, self._last_line_s = line, time.monotonic()
            self.say(line)
        elif since_s > QUIET_LINE_S:
            self._last_line_s = time.monotonic()
            self.say("no change")


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
        at = f"{exc.filename or run_dir}: {exc.strerror}" if isinstance(exc, OSError) else exc
        print(f"error: {at}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted, everything was stopped", file=sys.stderr)
        return 130
    ok = not any(report["problems"] for report in reports)
    if options.format == "json":
        result = {
            "schema": 1,
            "groups": options.groups,
            "ranks_per_group": options.ranks_per_group,
            "run_dir": str(run_dir),
            "ok": ok,
            "faults": reports,
        }
        print(json.dumps(result))
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
        wait_until_whole(fleet, log.show, START_LIMIT_S)
        log.say(f"whole: every rank commits. Monitor: {fleet.monitor_url}")
        for number, kind in enumerate(options.faults):
            if number:
                wait_until_whole(fleet, log.show, START_LIMIT_S)
            # Another group for each fault, and its last rank, which hosts no TorchFT manager.
            rank = f"rg_{(number + 1) % options.groups}.{options.ranks_per_group - 1}"
            log.say(f"injecting {kind} into {rank}: {faults.KINDS[kind]}")
            report = run_fault(fleet, kind, rank, log.show)
            reports.append(report)
            if report["incident"] is not None:
                fleet.print_story(report["incident"])
            log.say(fault_verdict(report))
        if options.keep_running:
            rank_url = fleet.monitor.snapshot()["ranks"][0]["url"]
            log.say(
                f"everything stays up until Ctrl-C; open {fleet.monitor_url}/, or curl it and "
                f"{rank_url}: both say what else to ask; the token is in {fleet.token_file}"
            )
            with contextlib.suppress(KeyboardInterrupt):
                for _ in fleet.attempts(inf, 1):
                    pass
    return reports


if __name__ == "__main__":
    sys.exit(main())
