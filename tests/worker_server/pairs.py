"""Pairs of real gloo ranks for tests and benchmarks; see `gloo_parent`."""

from __future__ import annotations

import json
from pathlib import Path

from lightkeeper.worker_server.sidecar.process import DEAF_S
from lightkeeper.worker_server.wire import StateReport
from tests.nursery import nursery
from tests.ports import free_port
from tests.worker_server.fates import DEAD
from tests.worker_server.ranks import TOKEN, Rank, environment, eventually


def trains(state: StateReport) -> bool:
    return state.step is not None and state.step.commits >= 3


def has_met(state: StateReport, fate: str) -> bool:
    process, step = state.process, state.step
    assert step is not None
    match fate:
        case "healthy":
            return step.commits > 3
        case "hung":
            return step.phase == "forward" and step.phase_age_s > 0.5
        case "gil":
            return (process.interpreter_age_s or 0) > DEAF_S
        case "sigstop":
            return process.state == "T"
        case _:
            assert fate in DEAD
            return not process.alive


class Pairs:
    """Forks pairs from one process that has imported torch; ends them all on `close`."""

    def __init__(self, run_dir: Path, **environ: str) -> None:
        self.run_dir = run_dir
        self._ranks: list[Rank] = []
        self._parent = nursery("distributed").start(
            ["-m", "tests.worker_server.gloo_parent"],
            environment(
                run_dir, **{"LIGHTKEEPER_TOKEN": TOKEN, "LIGHTKEEPER_LINGER_S": "60", **environ}
            ),
            talks=True,
        )

    def start(self, fate: str) -> tuple[Rank, Rank]:
        """Two ranks of one group, once rank 1 has met its fate."""
        parent = self._parent
        assert parent.stdin is not None
        assert parent.stdout is not None
        group = f"{fate}-{len(self._ranks)}"
        parent.stdin.write(f"{group} {fate} {free_port()}\n")
        parent.stdin.flush()
        line = parent.stdout.readline()
        first, second = (Rank(pid, self.run_dir) for pid in json.loads(line))
        self._ranks += [first, second]
        eventually(lambda: trains(second.state()), "the pair trains")
        eventually(lambda: second.record().torch is not None, "torch's record is there")
        (self.run_dir / f"{group}.go").touch()
        eventually(lambda: has_met(second.state(), fate), f"rank 1 is {fate}")
        return first, second

    def close(self) -> None:
        for rank in self._ranks:
            rank.end()
        parent = self._parent
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.close()
        try:
            parent.wait(10)
        finally:
            parent.kill()
            parent.wait(10)
            parent.stdout.close()
