"""The demo's processes: Lighthouse, monitor, one supervisor per group; and its command line."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import requests

from lightkeeper.trainer import faults, status
from lightkeeper.trainer.options import option, parser_of
from lightkeeper.trainer.supervisor import end, spawn

_PYTHON: Final = (sys.executable, "-P", "-m")

# -- The demo's command line ----------------------------------------------------------------------


class DemoFault(NamedTuple):
    incident: str
    """Kind of the monitor's incident."""
    leaves: bool = False
    """Whether it ends the group before anybody can evict it."""


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


def parse(argv: Sequence[str] | None = None) -> DemoOptions:
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
        self._session = requests.Session()
        self._session.trust_env = False  # no proxy between us and the loopback interface

    def _get(self, path: str) -> dict[str, Any]:
        try:
            answer = self._session.get(f"{self._url}{path}", timeout=5)
            answer.raise_for_status()
            return dict(answer.json())
        except (requests.RequestException, ValueError) as exc:
            raise MonitorAwayError(f"{self._url}{path}: {exc}") from exc

    def snapshot(self) -> dict[str, Any]:
        return self._get("/v1/snapshot")

    def incidents(self) -> list[dict[str, Any]]:
        """All incidents, newest first."""
        return list(self._get("/v1/incidents")["incidents"])

    def close(self) -> None:
        self._session.close()


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
        """Ask the trainer of `rank` to fail at `step`, or at its next step; returns the fault's
        id.
        """
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
        events = status.read(self.run_dir / "events" / f"{group}.jsonl")
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
                end(process, SHUTDOWN_GRACE_S)
        self.monitor.close()


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
        state=fleet.run_dir / "gate.json",
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
