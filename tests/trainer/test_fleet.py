"""A real fleet: torch imported once, then forked; a real Lighthouse; gloo on loopback."""

import json
import multiprocessing
import os
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.trainer.fakes import FakeReporter
from tests.waiting import wait_for
from trainer import faults, options, status

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

DEADLINE_S = 50.0


def until(condition, what):
    """The first true answer of `condition`, or a failure that says what was awaited."""
    return wait_for(condition, within_s=DEADLINE_S, what=what)


def rank_process(start, group, group_rank, world_size, port, arguments, told):
    """In the fork: wait for the Lighthouse's address, then be a rank."""
    lighthouse = start.recv()
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
    from trainer import train

    reporter = FakeReporter()
    train.train(options.parse(arguments), reporter)
    told.write_text(json.dumps(reporter.told))


class Fleet:
    """Forked groups, each waiting for `start`. Forks come first: the Lighthouse has threads."""

    def __init__(self, folder: Path, groups: int, world_size: int, *arguments: str, rg_1=()):
        import torch

        # AdamW imports this at its first step: once here, or in every fork.
        import torch._dynamo
        import torchft  # noqa: F401

        torch.set_num_threads(1)
        self.status_file = folder / "status.jsonl"
        context = multiprocessing.get_context("fork")
        self._ranks = {}
        for group in range(groups):
            port = free_port()
            for group_rank in range(world_size):
                name = f"rg_{group}.{group_rank}"
                ours, theirs = context.Pipe()
                told = folder / f"{name}.told"
                every = [
                    "--status-file",
                    str(self.status_file),
                    *arguments,
                    *(rg_1 if group == 1 else ()),
                ]
                process = context.Process(
                    target=rank_process,
                    args=(theirs, f"rg_{group}", group_rank, world_size, port, every, told),
                    daemon=True,
                )
                process.start()
                self._ranks[name] = (process, ours, told)

        from torchft.coordination import LighthouseServer

        self._lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1)
        self._address = f"http://127.0.0.1:{self._lighthouse.address().rpartition(':')[2]}"

    def start(self, *names):
        for name in names:
            self._ranks[name][1].send(self._address)

    def events(self, event, rank=None):
        return [
            line
            for line in status.read(self.status_file)
            if line["event"] == event and rank in {None, line["rank"]}
        ]

    def told(self, name):
        return [
            tuple(entry) if isinstance(entry, list) else entry
            for entry in json.loads(self._ranks[name][2].read_text())
        ]

    def exit_codes(self):
        for process, _, _ in self._ranks.values():
            process.join(DEADLINE_S)
        return [process.exitcode for process, _, _ in self._ranks.values()]

    def end(self):
        for process, _, _ in self._ranks.values():
            process.kill()
            process.join()
        self._lighthouse.shutdown()


@contextmanager
def fleet(*arguments, **extra):
    running = Fleet(*arguments, **extra)
    try:
        yield running
    finally:
        running.end()


def fingerprints(events):
    """Step -> the fingerprints of all ranks that recorded one there."""
    steps = {}
    for event in events:
        steps.setdefault(event["step"], {})[event["rank"]] = event["sha256"]
    return steps


def test_a_group_that_joins_late_heals_and_then_equals_the_others_bit_for_bit(tmp_path):
    often = ("--step-time", "0.05", "--log-every", "1", "--fingerprint-every", "1")
    with fleet(tmp_path, 2, 1, *often) as running:
        running.start("rg_0.0")
        until(lambda: len(running.events("fingerprint")) >= 3, "3 steps of rg_0 alone")
        running.start("rg_1.0")
        until(
            lambda: (
                len(running.events("fingerprint", "rg_1.0")) >= 10
                and len(running.events("fingerprint", "rg_0.0")) >= 20
            ),
            "10 steps of both",
        )
        both = [
            set(hashes.values())
            for hashes in fingerprints(running.events("fingerprint")).values()
            if len(hashes) == 2
        ]
        losses = [event["loss"] for event in running.events("step", "rg_0.0")]
        joined_at = running.events("fingerprint", "rg_1.0")[0]["step"]

    assert joined_at > 3
    assert len(both) >= 9  # the newest may be there from one of them only
    assert {len(hashes) for hashes in both} == {1}
    assert losses[0] > 5.0
    assert min(losses[-3:]) < losses[0] - 1.0


def test_two_ranks_in_a_group_tell_every_phase_and_end_with_zero(tmp_path):
    with fleet(tmp_path, 1, 2, "--steps", "3", "--fingerprint-every", "3") as running:
        running.start("rg_0.0", "rg_0.1")
        codes = running.exit_codes()
        told = running.told("rg_0.1")
        hashes = fingerprints(running.events("fingerprint"))

    assert codes == [0, 0]
    assert set(hashes) == {3}
    assert len(set(hashes[3].values())) == 1
    a_step = [
        "communication", "data", "forward", "backward", "communication", "optimizer",
    ]  # fmt: skip
    assert told == [
        "init", ("manager", 0),
        ("begin", 0), *a_step, ("end", 0, True, 512),
        ("begin", 1), *a_step, ("end", 1, True, 512),
        ("begin", 2), *a_step, ("end", 2, True, 512),
        "closed",
    ]  # fmt: skip


def test_two_groups_of_two_ranks_hold_equal_weights_from_the_first_step_on(tmp_path):
    often = ("--steps", "3", "--fingerprint-every", "1", "--min-replicas", "2")
    with fleet(tmp_path, 2, 2, *often) as running:
        running.start("rg_0.0", "rg_0.1", "rg_1.0", "rg_1.1")
        running.exit_codes()
        hashes = fingerprints(running.events("fingerprint"))

    assert set(hashes) == {1, 2, 3}
    assert [len(step) for step in hashes.values()] == [4, 4, 4]
    assert [len(set(step.values())) for step in hashes.values()] == [1, 1, 1]


def test_a_group_whose_loss_is_not_finite_abstains_and_the_others_go_on(tmp_path):
    # An infinite rate ruins rg_1's weights in every step that it commits.
    often = ("--step-time", "0.05", "--log-every", "1", "--timeout", "20")
    with fleet(tmp_path, 2, 1, *often, rg_1=("--learning-rate", "inf")) as running:
        # The sound group first: who starts alone commits alone, and ruins itself for both.
        running.start("rg_0.0")
        until(lambda: len(running.events("step", "rg_0.0")) >= 2, "2 steps of rg_0 alone")
        running.start("rg_1.0")
        until(
            lambda: (
                len([e for e in running.events("step", "rg_1.0") if not e["committed"]]) >= 3
                and len(running.events("step", "rg_0.0")) >= 10
            ),
            "3 dropped steps of rg_1 and 10 steps of rg_0",
        )
        sound = running.events("step", "rg_0.0")
        dropped = [e for e in running.events("step", "rg_1.0") if not e["committed"]]

    assert all(event["committed"] for event in sound)
    assert all(event["loss"] is not None for event in sound)
    assert [event["loss"] for event in dropped] == [None] * len(dropped)


def test_a_group_with_a_nan_gradient_says_so_before_the_exchange_and_nobody_takes_it_in(tmp_path):
    fault_file = tmp_path / "faults.json"
    often = ("--step-time", "0.05", "--log-every", "1", "--timeout", "20", "--fault-file",
             str(fault_file), "--steps", "30")  # fmt: skip
    with fleet(tmp_path, 2, 1, *often) as running:
        running.start("rg_0.0", "rg_1.0")
        until(lambda: len(running.events("step", "rg_1.0")) >= 3, "3 steps of rg_1")
        faults.inject(fault_file, faults.Fault("nan", faults.Kind.NAN, "rg_1.0"))
        until(lambda: len(running.events("finished", "rg_0.0")) == 1, "the end of rg_0")
        sound = running.events("step", "rg_0.0")
        [marker] = faults.markers(fault_file)
        late = [e for e in running.events("step", "rg_1.0") if e["time"] > marker.time]
        until(running._ranks["rg_0.0"][2].exists, "what rg_0 told")
        told = running.told("rg_0.0")

    assert all(event["loss"] is not None and event["committed"] for event in sound)
    assert not any(event["committed"] for event in late)
    assert [entry for entry in told if entry[0] == "not finite"] == []
