"""A job on the hosts of a lab: Lighthouse, ranks by hand, and a monitor, or none of ours."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

from experiments.harness import StepLog, prepare
from experiments.netlab.cases import SHAPES, Case
from experiments.netlab.lab import Lab
from tests.monitor.lighthouses import installations, lighthouse_program
from tests.nursery import nursery

SCRIPTS: Final = Path(__file__).with_name("scripts")
_PORT: Final = {"lighthouse": 29510, "monitor": 8470, "data": 9000}
_STORE_PORT: Final = 29500
_GATE_PORT: Final = 29511
_GATES: Final = ("gate-0", "gate-1")
_DROPPED: Final = ("LIGHTKEEPER_", "TORCHFT_", "REPLICA_GROUP", "PYTEST_", "COVERAGE_")


class Job:
    """In `lab_of(case)`; it ends with the lab."""

    def __init__(
        self, case: Case, lab: Lab, folder: Path, *, alone: bool, forked: bool = False
    ) -> None:  # fmt: skip
        """`forked`: monitor and ranks are forks of processes that have imported what they need."""
        self.case, self.lab, self.folder = case, lab, folder
        self.alone, self.forked = alone, forked
        self.shape = SHAPES[case.shape]
        self.pids: dict[str, int] = {}
        self._output = folder / "output"
        self._steps = {rank: StepLog(self._output / f"{rank}.jsonl") for rank in self.shape.places}
        self.monitor_port = _PORT["monitor"]
        self._monitor = f"http://monitor:{self.monitor_port}"

    def start(self) -> None:
        """Start everything but the groups that come late; returns at once."""
        token = prepare(self.folder, "logs", "output")
        (library, *_) = installations().values()
        self._spawn(
            "lighthouse", "lighthouse", *lighthouse_program(library, self.folder / "lighthouse.py"),
            "--bind", f"[::]:{_PORT['lighthouse']}", "--min_replicas", "1", *self.case.lighthouse,
        )  # fmt: skip
        if self.case.gate:
            self.start_gate("gate-0")
        self._spawn(
            "data", "data", sys.executable, str(SCRIPTS / "data_server.py"), str(_PORT["data"])
        )
        if not self.alone:
            self._spawn(
                "monitor", "monitor", _program("lightkeeper"), "monitor",
                "--lighthouse", f"http://lighthouse:{_PORT['lighthouse']}",
                "--bind", f"0.0.0.0:{_PORT['monitor']}", "--token-file", str(token),
                "--store", str(self.folder / "monitor.db"),
                *(("--gate", f"http://gate:{_GATE_PORT + 1}") if self.case.gate else ()),
            )  # fmt: skip
        for group in range(self.shape.groups):
            if group not in self.case.late:
                self.start_group(group)

    def start_gate(self, host: str) -> None:
        """Of the name `gate`, if that leads to the host."""
        self._spawn(
            host, host, _program("lightkeeper"), "gate",
            "--lighthouse", f"http://lighthouse:{_PORT['lighthouse']}",
            "--bind", f"0.0.0.0:{_GATE_PORT}", "--admin", f"0.0.0.0:{_GATE_PORT + 1}",
            "--token-file", str(self.folder / "token"),
        )  # fmt: skip

    def start_group(self, group: int) -> None:
        """All ranks of it."""
        places = self.shape.places
        command = [sys.executable, "-W", "ignore", str(SCRIPTS / "train.py")]
        if not self.alone and not self.forked:
            command = [_program("lightkeeper"), "run", "--no-wait", "--", *command]
        for rank in range(self.shape.ranks):
            name = f"{group}.{rank}"
            self._spawn(
                name, places[name], *command,
                REPLICA_GROUP_ID=str(group), RANK=str(rank), WORLD_SIZE=str(self.shape.ranks),
                LOCAL_RANK=str(rank % self.shape.a_host),
                MASTER_ADDR=f"store-{group}" if self.case.stores else places[f"{group}.0"],
                MASTER_PORT=str(_STORE_PORT),
                TORCHFT_LIGHTHOUSE=f"http://gate:{_GATE_PORT}" if self.case.gate
                else f"http://lighthouse:{_PORT['lighthouse']}",
                FAR=f"data:{_PORT['data']}", **self.case.env,
            )  # fmt: skip

    def _spawn(self, name: str, host: str, *command: str, **extra: str) -> None:
        run = self.folder / "run" / host
        run.mkdir(mode=0o700, exist_ok=True)
        ours = {
            "LIGHTKEEPER_MONITOR": self._monitor,
            "LIGHTKEEPER_TOKEN_FILE": str(self.folder / "token"),
            "LIGHTKEEPER_RUN_DIR": str(run),
        }
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(_DROPPED)},
            "XDG_STATE_HOME": str(self.folder / "state"),
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "RUST_LOG": "info",
            "OUTPUT": str(self._output),
            **({} if self.alone else ours),
            **extra,
        }
        log = self.folder / "logs" / f"{name}.log"
        if self.forked and name in self.shape.places:
            words, parent = command[-1:], nursery("torch")
        elif self.forked and command[0] == _program("lightkeeper"):
            words, parent = ("-m", "lightkeeper.monitor.cli", *command[1:]), nursery("monitor")
        else:
            self.pids[name] = self.lab.spawn(host, command, environment, log)
            return
        self.pids[name] = self.lab.fork(host, parent, words, environment, log)

    # -- deeds -------------------------------------------------------------------------------------

    def move_gate(self) -> None:
        """Another gate on another host, and the name leads there."""
        self.start_gate("gate-1")
        self.lab.lead("gate", "gate-1")

    def host(self, rank: str) -> str:
        """Where it runs."""
        return self.shape.places[rank]

    def kill(self, *names: str) -> None:
        """SIGKILL to ranks, or to servers, alone."""
        for name in names:
            os.kill(self.pids[name], signal.SIGKILL)

    def silence_data_for(self, host: str) -> None:
        """The data server hears it and never answers."""
        (self._output / "silent").write_text(self.lab.address(host))

    def upload(self) -> None:
        """The rank that UPLOADS names begins."""
        (self._output / "upload").touch()

    # -- looks -------------------------------------------------------------------------------------

    def steps(self) -> dict[str, list[dict[str, Any]]]:
        """Rank -> its commits so far."""
        return {rank: log.read() for rank, log in self._steps.items()}

    def ended(self) -> list[str]:
        """Names of processes that are no more."""
        return [name for name, pid in self.pids.items() if not _lives(pid)]


def lab_of(case: Case, folder: Path) -> Lab:
    """Hosts of the ranks and of the servers."""
    shape = SHAPES[case.shape]
    stores = {f"store-{group}": shape.places[f"{group}.0"] for group in range(shape.groups)}
    wrong = shape.nodes if case.wrong_names else ()
    gates, aliases = (_GATES, {"gate": "gate-0"}) if case.gate else ((), {})
    hosts = [*shape.nodes, *_PORT, *gates]
    return Lab(folder, hosts, wrong, stores if case.stores else None, aliases)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _program(name: str) -> str:
    return str(Path(sys.executable).parent / name)
