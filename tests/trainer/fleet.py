"""Real fleets for tests: ranks are forks of the nursery; a real Lighthouse; gloo on loopback."""

import json
import os
from contextlib import contextmanager
from pathlib import Path

from experiments.fleet import SMALL
from lightkeeper.trainer import status
from tests.monitor.lighthouses import installations, lighthouse_process
from tests.nursery import nursery, opened_here
from tests.ports import free_port
from tests.waiting import wait_for

DEADLINE_S = 50.0
LEARNING = (*SMALL, "--learning-rate", "0.01")
"""As much in the few steps of a test as the large model does with its own rate."""
RANK = f"""
import faulthandler, json, sys
from pathlib import Path
from lightkeeper.trainer import options, train
from tests.trainer.fakes import FakeReporter

faulthandler.dump_traceback_later({DEADLINE_S})  # a test that still waits then shows why
calls_file, reporter = Path(sys.argv[1]), FakeReporter()
train.train(options.rank_options(sys.argv[2:]), reporter)
whole = calls_file.with_suffix(".part")
whole.write_text(json.dumps(reporter.told))
whole.replace(calls_file)
"""


def until(condition, what):
    """The first true answer of `condition`, or a failure that says what was awaited."""
    return wait_for(condition, within_s=DEADLINE_S, what=what)


class Forks:
    """Ranks that wait for `start`."""

    def __init__(self, folder: Path, *arguments: str):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.status_file = folder / "status.jsonl"
        self._arguments = ("--status-file", str(self.status_file), *LEARNING, *arguments)
        self._added = {}
        self._running = {}
        self._address = None

    def add(self, group, world_size, *extra, life=0):
        """A group of so many ranks; a group that is to start again is added again, as `life` 1."""
        port = free_port()
        for group_rank in range(world_size):
            name = f"{group}.{group_rank}"
            environ = {
                "RANK": str(group_rank), "WORLD_SIZE": str(world_size), "REPLICA_GROUP": group,
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": "lo", "LIGHTKEEPER_HOST": "host-1",
            }  # fmt: skip
            words = ["-c", RANK, self.told_file(name, life), *self._arguments, *extra]
            self._added[name, life] = words, environ
        return self

    def meet(self, address):
        """Where the Lighthouse is."""
        self._address = address

    def start(self, *names, life=0):
        for name in names:
            words, environ = self._added[name, life]
            environ = {**os.environ, **environ, "TORCHFT_LIGHTHOUSE": self._address}
            self._running[name, life] = nursery("torch").start(words, environ, err=opened_here(2))

    def start_all(self):
        for name, life in self._added:
            self.start(name, life=life)

    def kill(self, *names, life=0):
        for name in names:
            self._running[name, life].kill()
            self._running[name, life].wait()

    def events(self, event, rank=None):
        return [
            line
            for line in status.read_events(self.status_file)
            if line["event"] == event and rank in {None, line["rank"]}
        ]

    def losses(self, event, rank="rg_0.0"):
        """Step -> the loss of that event."""
        return {line["step"]: line["loss"] for line in self.events(event, rank)}

    def prints(self):
        """Step -> piece -> the fingerprints that were recorded of it, with who recorded them."""
        steps = {}
        for event in self.events("fingerprint"):
            step = steps.setdefault(event["step"], {})
            step.setdefault(event["piece"], {})[event["rank"]] = event["sha256"]
        return steps

    def told_file(self, name, life=0):
        return self.folder / f"{name}.{life}.told"

    def told(self, name, life=0):
        return [
            tuple(entry) if isinstance(entry, list) else entry
            for entry in json.loads(self.told_file(name, life).read_text())
        ]

    def exit_codes(self):
        return [rank.wait(DEADLINE_S) for rank in self._running.values()]

    def end(self):
        for rank in self._running.values():
            rank.kill()
            rank.wait()


@contextmanager
def lighthouse(*fleets):
    """A Lighthouse for fleets whose ranks are forked; ends all of them."""
    (library, *_), script = installations().values(), fleets[0].folder / "lighthouse.py"
    with lighthouse_process(
        library, script, free_port(), min_replicas=1, join_timeout_ms=100
    ) as address:
        for fleet in fleets:
            fleet.meet(address)
        try:
            yield
        finally:
            for fleet in fleets:
                fleet.end()


def unequal(prints):
    """Where recorded fingerprints of one piece at one step differ."""
    return [
        (step, piece)
        for step, pieces in prints.items()
        for piece, hashes in pieces.items()
        if len(set(hashes.values())) > 1
    ]


def shared(prints, ranks=2):
    """How many pieces at how many steps were recorded by so many ranks: what `unequal` can see."""
    return sum(len(hashes) == ranks for pieces in prints.values() for hashes in pieces.values())
