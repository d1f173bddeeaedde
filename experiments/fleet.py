"""A fleet that outlives its faults: Lighthouse, gate, monitor, and the forked groups (`forks`)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import requests

from experiments.forks import ADDRESS
from experiments.harness import FleetError, children, descendants, prepare
from lightkeeper.trainer import faults
from lightkeeper.trainer.demo import MonitorClient, free_port
from lightkeeper.trainer.supervisor import die_with_parent
from tests import sidecars
from tests.monitor.lighthouses import installations, lighthouse_program
from tests.nursery import Child, Nursery, nursery

_GRACE_S: Final = 20.0
_SPARES: Final = 3
STEP_TIME_S: Final = 0.2
SMALL: Final = ("--width", "32", "--context", "32", "--batch", "2")
"""Options of a trainer whose step is 3 ms of CPU, not 26: for tests, which ask how a fleet is
judged and not what it learns."""
MONITOR_OPTIONS: Final = (
    "--budget", "100000",
    "--set", "crash_loop_after=1000",  # the same rank is hit again and again, on purpose
    "--set", "program_bug_after=1000",
    "--set", "keep_resolved_s=600",
    "--set", "cool_down_s=0",  # as if each fault came on a calm day
)  # fmt: skip
"""What differs from the monitor's defaults, and only about evicting: no threshold of a detector."""


class Shape(NamedTuple):
    """Groups and ranks of a fleet."""

    groups: int
    ranks: int
    """In each group."""


SHAPES: Final[Mapping[str, Shape]] = {"3x1": Shape(3, 1), "2x2": Shape(2, 2)}
JOIN_TIMEOUT_MS: Final[Mapping[str, int]] = {"default": 60_000, "amd": 100_000}
"""Of the Lighthouse: TorchFT's own, and that of AMD's deployment (facts/torchft.md)."""


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """What one fleet is; runs of the same setting share it."""

    shape: str
    timeouts: str = "default"
    keeper: bool = True
    """Whether lightkeeper is there."""
    gate: bool = False
    special: str = ""
    """`cut`: the last group's host, a network namespace of its own, can be unplugged. `rogue`: the
    last group's launcher asks nobody."""

    @property
    def groups(self) -> int:
        """Replica groups."""
        return SHAPES[self.shape].groups

    @property
    def ranks(self) -> int:
        """In each."""
        return SHAPES[self.shape].ranks

    @property
    def min_replicas(self) -> int:
        """Of the Lighthouse and the trainers: AMD's deployment lets one group train alone."""
        return 1 if self.timeouts == "amd" else min(2, self.groups - 1)

    def __str__(self) -> str:
        beside = "lightkeeper" if self.keeper else "alone"
        gate = "+gate" if self.gate else ""
        return f"{self.timeouts}/{self.shape}/{beside}{gate}{self.special and '/' + self.special}"


@dataclass
class Fleet:
    """Made by `start`."""

    zygote: ClassVar[str] = "experiments.forks"
    """The module that makes the groups."""
    setting: Setting
    folder: Path
    trainer_options: Sequence[str] = ()
    monitor_options: Sequence[str] = MONITOR_OPTIONS
    rust_log: str = "warn"
    """What TorchFT's own part logs; at info it tells why a quorum failed."""
    address: str = "127.0.0.1"
    """Where Lighthouse and monitor are reached."""
    lighthouse_port: int = field(default_factory=free_port)
    monitor_port: int = field(default_factory=free_port)
    gate_port: int = field(default_factory=free_port)
    gate_admin_port: int = field(default_factory=free_port)
    processes: dict[str, subprocess.Popen[bytes] | Child] = field(default_factory=dict)
    nursery: Nursery | None = None
    """Forks the zygote, others what else is a module; None: each process imports what it needs."""

    @property
    def groups(self) -> int:
        """Replica groups."""
        return self.setting.groups

    @property
    def ranks_per_group(self) -> int:
        """Ranks in each."""
        return self.setting.ranks

    @property
    def ranks(self) -> list[str]:
        """Names of all ranks."""
        return [f"rg_{g}.{r}" for g in range(self.groups) for r in range(self.ranks_per_group)]

    @property
    def min_replicas(self) -> int:
        """Of the Lighthouse, the trainers and the monitor."""
        return self.setting.min_replicas

    def lighthouse_options(self) -> tuple[str, ...]:
        """Beyond its address."""
        return ("--join_timeout_ms", str(JOIN_TIMEOUT_MS[self.setting.timeouts]))

    def for_groups(self) -> dict[str, str]:
        """What the groups take for the Lighthouse; with a gate, what `lightkeeper run` sets."""
        if not self.setting.gate:
            return {"TORCHFT_LIGHTHOUSE": f"http://{self.address}:{self.lighthouse_port}"}
        gate = f"http://{self.address}:{self.gate_port}"
        return {"TORCHFT_LIGHTHOUSE": gate, "TORCHFT_QUORUM_RETRIES": "59"}

    def group_options(self, group: str) -> dict[str, Any]:
        """What is special about one group, as `forks.Group` takes it."""
        last = group == f"rg_{self.groups - 1}"
        if self.setting.special == "rogue" and last:
            return {"asks": False}
        if self.setting.special != "cut":
            return {}
        end = "there" if last else "here"
        address = self.end_address(end)
        return {
            "netns": self.netns if last else None,
            "environment": {
                ADDRESS: address,
                "GLOO_SOCKET_IFNAME": self.link(end),
                "LIGHTKEEPER_BIND": address,
            },
        }

    @property
    def gate_admin(self) -> str:
        """Where the gate is told what it refuses."""
        return f"http://127.0.0.1:{self.gate_admin_port}"

    @property
    def monitor_url(self) -> str:
        """Where the monitor is."""
        return f"http://{self.address}:{self.monitor_port}"

    @property
    def fault_file(self) -> Path:
        """What the injectors watch."""
        return self.folder / "fault.json"

    def client(self) -> MonitorClient:
        """Asks the monitor."""
        return MonitorClient(self.monitor_url)

    # -- processes -----------------------------------------------------------------------

    def start(self) -> None:
        """Start everything; returns at once."""
        if self.setting.special == "cut":
            self.address = self.end_address("here")
            self._make_namespace()
        if self.setting.gate:
            self.monitor_options = (*self.monitor_options, "--gate", self.gate_admin)
        prepare(self.folder, "logs", "events")
        self.start_lighthouse()
        self.start_monitor()
        self._start_groups()

    def start_lighthouse(self) -> None:
        """Start it, or start it again on the same port; the gate before it starts once."""
        (library, *_) = installations().values()
        self._spawn(
            "lighthouse",
            [
                *lighthouse_program(library, self.folder / "lighthouse.py"),
                "--bind", f"[::]:{self.lighthouse_port}",
                "--min_replicas", str(self.min_replicas),
                *self.lighthouse_options(),
            ],
        )  # fmt: skip
        if self.setting.gate and "gate" not in self.processes:
            self.start_gate()

    def start_gate(self) -> None:
        """Start it, or start it again on the same ports."""
        self._spawn(
            "gate",
            [
                sys.executable, "-m", "lightkeeper.monitor.cli", "gate",
                "--lighthouse", f"http://{self.address}:{self.lighthouse_port}",
                "--bind", f"{self.address}:{self.gate_port}",
                "--admin", f"127.0.0.1:{self.gate_admin_port}",
                "--token-file", str(self.folder / "token"),
            ],
        )  # fmt: skip

    def start_monitor(self) -> None:
        """Start it, or start it again on the same store and port, if this setting has one."""
        if not self.setting.keeper:
            return
        self._spawn(
            "monitor",
            [
                sys.executable, "-m", "lightkeeper.monitor.cli", "monitor",
                "--lighthouse", f"http://{self.address}:{self.lighthouse_port}",
                "--bind", f"{self.address}:{self.monitor_port}",
                "--store", str(self.folder / "lightkeeper.sqlite3"),
                "--token-file", str(self.folder / "token"),
                "--min-replicas", str(self.min_replicas),
                *self.monitor_options,
            ],
        )  # fmt: skip

    def _start_groups(self) -> None:
        config = self.folder / "groups.json"
        arguments = [
            "--steps", "0", "--step-time", str(STEP_TIME_S), "--log-every", "1",
            "--status-file", str(self.folder / "steps.jsonl"),
            "--min-replicas", str(self.min_replicas),
            "--fault-file", str(self.fault_file),
            *self.trainer_options,
        ]  # fmt: skip
        groups = [
            {
                "name": f"rg_{index}",
                "hosts": [f"host-{index}{letter}" for letter in "abcdefgh"[: _SPARES + 1]],
                "nproc": self.ranks_per_group,
                "arguments": arguments,
                **self.group_options(f"rg_{index}"),
            }
            for index in range(self.groups)
        ]
        config.write_text(
            json.dumps({"folder": str(self.folder), "monitor": self.monitor_url, "groups": groups})
        )
        self._spawn("zygote", [sys.executable, "-m", self.zygote, str(config)])

    def _spawn(self, name: str, command: list[str]) -> None:
        environment = {
            **os.environ,
            "LIGHTKEEPER_RUN_DIR": str(self.folder / "run"),
            **self.for_groups(),
            "LIGHTKEEPER_MONITOR": self.monitor_url,
            "LIGHTKEEPER_TOKEN_FILE": str(self.folder / "token"),
            "LIGHTKEEPER_JOB": "campaign",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "RUST_LOG": self.rust_log,
            "PYTHONUNBUFFERED": "1",
        }
        path = self.folder / "logs" / f"{name}.log"
        if self.nursery is not None and command[1] == "-m":
            home = self.nursery if name == "zygote" else nursery("monitor")
            environment |= {**sidecars.forked(), "LIGHTKEEPER_MACHINE": "1"}
            self.processes[name] = home.start(command[1:], environment, out=path, err=path)
            return
        with path.open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - this process has one thread
            )

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End one process of ours and wait for it."""
        process = self.processes.pop(name)
        process.send_signal(number)
        process.wait(_GRACE_S)

    def check(self) -> None:
        """Raise when a process that must live has ended."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise FleetError(
                    f"{name} ended with {process.returncode} (log: {self.folder}/logs/{name}.log)"
                )

    def stop(self) -> None:
        """End everything that was started."""
        for group in range(self.groups):
            self.thaw(f"rg_{group}")
        for name in ("zygote", "monitor", "lighthouse", "gate"):
            process = self.processes.pop(name, None)
            if process is None:
                continue
            process.terminate()
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self.setting.special == "cut":
            with contextlib.suppress(FleetError):
                _ip(f"netns del {self.netns}")  # its link goes with it

    # -- a host of its own ------------------------------------------------------------------

    @property
    def netns(self) -> str:
        """Name of the namespace."""
        return f"lk{self.gate_port}"

    def link(self, end: str) -> str:
        """Name of one end of its link."""
        return f"lk{end[0]}{self.gate_port}"

    def end_address(self, end: str) -> str:
        """Address of one end; several fleets may run side by side."""
        return f"10.77.{self.gate_port % 256}.{1 if end == 'here' else 2}"

    def _make_namespace(self) -> None:
        here, there, name = self.link("here"), self.link("there"), self.netns
        for command in (
            f"netns add {name}",
            f"link add {here} type veth peer name {there} netns {name}",
            f"addr add {self.end_address('here')}/30 dev {here}",
            f"link set {here} up",
            f"-n {name} addr add {self.end_address('there')}/30 dev {there}",
            f"-n {name} link set {there} up",
            f"-n {name} link set lo up",
        ):
            _ip(command)

    def set_link(self, *, up: bool) -> None:
        """Plug the namespace in or out, at its own end."""
        _ip(f"-n {self.netns} link set {self.link('there')} {'up' if up else 'down'}")

    # -- hosts ---------------------------------------------------------------------------

    def supervisor(self, group: str) -> int | None:
        """Pid of a group's supervisor."""
        path = self.folder / "supervisors.json"
        return int(json.loads(path.read_text())[group]) if path.exists() else None

    def on_host(self, group: str) -> list[int]:
        """Everything of a group but its supervisor: agent, ranks, WorkerServers."""
        supervisor = self.supervisor(group)
        if supervisor is None:
            return []
        return [*descendants(supervisor), *self._sidecars(group)]

    def _sidecars(self, group: str) -> Iterator[int]:
        wanted = {f"REPLICA_GROUP={group}", f"LIGHTKEEPER_RUN_DIR={self.folder / 'run'}"}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environ = set((entry / "environ").read_bytes().decode(errors="replace").split("\0"))
                if wanted <= environ:
                    yield int(entry.name)

    def lose_host(self, group: str, number: signal.Signals) -> None:
        """All processes of a group's host get a signal at once; nobody starts it again."""
        supervisor = self.supervisor(group)
        assert supervisor is not None
        os.kill(supervisor, signal.SIGSTOP)
        for pid in self.on_host(group):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def thaw(self, group: str) -> None:
        """The scheduler finds another host: what was left is gone, the supervisor goes on."""
        supervisor = self.supervisor(group)
        if supervisor is None or _state(supervisor) != "T":
            return
        for pid in self.on_host(group):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(supervisor, signal.SIGCONT)

    def restart_group(self, group: str) -> None:
        """End a group's ranks; its supervisor starts it again."""
        supervisor = self.supervisor(group)
        for pid in children(supervisor) if supervisor is not None else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # -- faults --------------------------------------------------------------------------

    def inject(self, items: Sequence[dict[str, Any]]) -> None:
        """Put faults into the file."""
        faults.inject(self.fault_file, *(faults.parse_fault(item) for item in items))

    def marker(self, fault_id: str) -> faults.Marker | None:
        """What the trainer noted when the fault struck."""
        markers = faults.markers(self.fault_file)
        return next((mark for mark in markers if mark.id == fault_id), None)

    def quarantine(self, host: str) -> None:
        """As a person does, through the monitor."""
        answer = requests.put(
            f"{self.monitor_url}/v1/quarantine/{host}",
            json={"reason": "to be repaired"},
            headers={"Authorization": f"Bearer {(self.folder / 'token').read_text()}"},
            timeout=5,
        )
        answer.raise_for_status()

    def repair(self) -> None:
        """Hosts are sound again: no fault, no slowness, no quarantine is left."""
        faults.inject(self.fault_file)
        time.sleep(2 * STEP_TIME_S)  # a rank in its step has read the old file
        for path in faults.marker_folder(self.fault_file).glob("*"):
            path.unlink(missing_ok=True)
        if not self.setting.keeper:
            return
        token = (self.folder / "token").read_text()
        session = requests.Session()
        session.trust_env = False
        with session, contextlib.suppress(requests.RequestException, ValueError):
            answer = session.get(f"{self.monitor_url}/v1/quarantine", timeout=5).json()
            for entry in answer["quarantine"]:
                session.delete(
                    f"{self.monitor_url}/v1/quarantine/{entry['host']}",
                    headers={"Authorization": f"Bearer {token}"},
                    timeout=5,
                )


def _ip(command: str) -> None:
    done = subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FleetError(f"ip {command}: {done.stderr.strip()} (needs root and iproute2)")


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
