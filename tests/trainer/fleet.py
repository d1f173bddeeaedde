"""Real fleets for tests: torch imported once, ranks forked; a real Lighthouse; gloo on loopback."""

import faulthandler
import json
import multiprocessing
import os
from contextlib import contextmanager
from pathlib import Path

from experiments.fleet import SMALL
from lightkeeper.trainer import options, status
from tests.ports import free_port
from tests.trainer.fakes import FakeReporter
from tests.waiting import wait_for

DEADLINE_S = 50.0
LEARNING = (*SMALL, "--learning-rate", "0.01")
"""As much in the few steps of a test as the large model does with its own rate."""


def until(condition, what):
    """The first true answer of `condition`, or a failure that says what was awaited."""
    return wait_for(condition, within_s=DEADLINE_S, what=what)


def rank_process(start, group, group_rank, world_size, port, arguments, calls_file):
    """In the fork: wait for the Lighthouse's address, then be a rank."""
    lighthouse = start.recv()
    faulthandler.dump_traceback_later(DEADLINE_S)  # a test that still waits then shows why
    os.environ.update(
        RANK=str(group_rank),
        WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        REPLICA_GROUP=group,
        TORCHFT_LIGHTHOUSE=lighthouse,
        GLOO_SOCKET_IFNAME="lo",
        LIGHTKEEPER_HOST="host-1",
    )
    from lightkeeper.trainer import train

    reporter = FakeReporter()
    train.train(options.rank_options(arguments), reporter)
    whole = calls_file.with_suffix(".part")
    whole.write_text(json.dumps(reporter.told))
    whole.replace(calls_file)


def preload():
    """What ranks import, once here, or in every fork."""
    import torch
    import torch._dynamo  # AdamW imports it at its first step
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torchft  # noqa: F401

    torch.set_num_threads(1)


class Forks:
    """Ranks that wait for `start`. They are forked first: a Lighthouse has threads."""

    def __init__(self, folder: Path, *arguments: str):
        preload()
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.status_file = folder / "status.jsonl"
        self._arguments = ("--status-file", str(self.status_file), *LEARNING, *arguments)
        self._context = multiprocessing.get_context("fork")
        self._ranks = {}
        self._address = None

    def add(self, group, world_size, *extra, life=0):
        """A group of so many ranks; a group that is to start again is added again, as `life` 1."""
        port = free_port()
        for group_rank in range(world_size):
            name = f"{group}.{group_rank}"
            ours, theirs = self._context.Pipe()
            calls_file = self.folder / f"{name}.{life}.told"
            process = self._context.Process(
                target=rank_process,
                args=(
                    theirs, group, group_rank, world_size, port,
                    [*self._arguments, *extra], calls_file,
                ),
                daemon=True,
            )  # fmt: skip
            process.start()
            self._ranks[name, life] = (process, ours, calls_file)
        return self

    def meet(self, address):
        """Where the Lighthouse is."""
        self._address = address

    def start(self, *names, life=0):
        for name in names:
            self._ranks[name, life][1].send(self._address)

    def start_all(self):
        for _, pipe, _ in self._ranks.values():
            pipe.send(self._address)

    def kill(self, *names, life=0):
        for name in names:
            process = self._ranks[name, life][0]
            process.kill()
            process.join()

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
        return self._ranks[name, life][2]

    def told(self, name, life=0):
        return [
            tuple(entry) if isinstance(entry, list) else entry
            for entry in json.loads(self.told_file(name, life).read_text())
        ]

    def exit_codes(self):
        for process, _, _ in self._ranks.values():
            process.join(DEADLINE_S)
        return [process.exitcode for process, _, _ in self._ranks.values()]

    def end(self):
        for process, _, _ in self._ranks.values():
            process.kill()
            process.join()


@contextmanager
def lighthouse(*fleets):
    """A Lighthouse for fleets whose ranks are forked; ends all of them."""
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1)
    try:
        for fleet in fleets:
            fleet.meet(f"http://127.0.0.1:{server.address().rpartition(':')[2]}")
        yield
    finally:
        for fleet in fleets:
            fleet.end()
        server.shutdown()


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
