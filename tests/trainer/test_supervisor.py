"""The supervisor on a fake timeline: launches and hosts are scripts."""

import itertools
import signal

import pytest

from lightkeeper.trainer.supervisor import MARK, Launcher, Supervisor, end_on_signals, main
from lightkeeper.worker_server.rank.admission import REFUSED_STATUS


class World:
    """Launches end by script: (seconds until they leave, return code); None runs for ever."""

    def __init__(self, launches, *, refused=(), stop_at=1000.0):
        self.now = 0.0
        self.events = []
        self.started, self.stopped, self.swept, self.closed = [], [], 0, 0
        self._script = iter(launches)
        self.refused = refused
        """Hosts, of all launches, or by when they are started."""
        self._stop_at = stop_at

    # launcher
    def start(self, host):
        refused = self.refused(self.now) if callable(self.refused) else self.refused
        if host in refused:
            return FakeLaunch(self, host, (0, REFUSED_STATUS))
        self.started.append((self.now, host))
        return FakeLaunch(self, host, next(self._script))

    def close(self):
        self.closed += 1
        return []

    def emit(self, event, **facts):
        self.events.append((event, facts))

    def sleep(self, seconds):
        self.now = min(self.now + seconds, self._stop_at)
        if self.now >= self._stop_at:
            raise SystemExit(143)

    def run(self, hosts="host-1,spare-1", backoff_s=1.0):
        Supervisor(
            hosts.split(","),
            launcher=self,
            emit=self.emit,
            sleep=self.sleep,
            clock=lambda: self.now,
            backoff_s=backoff_s,
        ).run()

    def names(self):
        return [event for event, _ in self.events]


class FakeLaunch:
    pid = 1

    def __init__(self, world, host, script):
        self._host, self._world = host, world
        self._leaves_at, self._code = (
            (None, None) if script is None else (world.now + script[0], script[1])
        )

    def poll(self):
        gone = self._leaves_at is not None and self._world.now >= self._leaves_at - 1e-9
        return self._code if gone else None

    def stop(self):
        self._world.stopped.append(self._host)

    def sweep(self):
        self._world.swept += 1
        return [4711]


def test_a_training_that_finished_is_not_started_again():
    world = World([(60, 0)])
    world.run()

    assert world.started == [(0.0, "host-1")]
    assert world.names() == ["started", "left"]
    assert world.closed == 1


def test_a_group_that_left_is_swept_and_started_again_after_the_backoff():
    world = World([(60, 1), (60, -9), (60, 0)])
    world.run(backoff_s=2.0)

    assert [round(at, 6) for at, _ in world.started] == [0.0, 62.0, 124.0]
    assert world.swept == 3
    assert world.events[1] == ("left", {"host": "host-1", "rc": 1})


def test_launches_that_fail_at_once_are_paused_longer_and_longer_up_to_a_limit():
    world = World(itertools.repeat((0, 1)), stop_at=130.0)
    with pytest.raises(SystemExit):
        world.run()

    pauses = [b - a for (a, _), (b, _) in itertools.pairwise(world.started)]
    assert [round(pause, 6) for pause in pauses] == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_refused_host_makes_way_for_the_next_one_at_once_and_for_good():
    world = World([(60, 1), (60, 0)], refused=["host-1"])
    world.run()

    assert [(round(at, 6), host) for at, host in world.started] == [(0, "spare-1"), (61, "spare-1")]
    assert world.events[:2] == [
        ("started", {"host": "host-1", "pid": 1}),
        ("refused", {"host": "host-1"}),
    ]
    assert world.names().count("refused") == 1


def test_a_host_that_is_admitted_again_is_used_when_the_others_are_refused():
    world = World([(60, 1), (60, 0)], refused=lambda at_s: ["host-1" if at_s < 30 else "spare-1"])
    world.run()

    assert [host for _, host in world.started] == ["spare-1", "host-1"]


def test_when_all_refuse_it_waits_until_one_admits():
    both = ["host-1", "spare-1"]
    world = World([(60, 0)], refused=lambda at_s: both if at_s < 3 else [])
    world.run()

    assert world.started == [(3.0, "host-1")]
    assert world.names().count("refused") == 6


def test_it_can_be_stopped_while_all_refuse():
    world = World([], refused=["host-1"], stop_at=10.0)
    with pytest.raises(SystemExit):
        world.run("host-1")

    assert (world.stopped, world.closed) == ([], 1)


def test_a_stop_ends_the_launch_and_whatever_was_left():
    world = World([None], stop_at=5.0)
    with pytest.raises(SystemExit):
        world.run()

    assert world.stopped == ["host-1"]
    assert world.names() == ["started"]
    assert world.closed == 1


def test_a_launcher_that_breaks_still_ends_what_was_started():
    world = World([(60, 1)])

    with pytest.raises(StopIteration):  # the script has no second launch
        world.run()
    assert world.closed == 1


# -- the environment of a launch --------------------------------------------------------------


def test_ranks_know_their_group_and_host_and_carry_the_mark(monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "1234")
    launcher = Launcher("rg_1", 2, ["--steps", "3"])

    environ = launcher.environment("spare-1", "run.1")

    assert environ["REPLICA_GROUP"] == "rg_1"
    assert environ["LIGHTKEEPER_HOST"] == "spare-1"
    assert environ[MARK] == "run.1;"
    assert "MASTER_PORT" not in environ
    assert launcher.command()[-4:] == ["-m", "lightkeeper.trainer.train", "--steps", "3"]
    assert "--nproc-per-node=2" in launcher.command()


# -- wrong use --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["--hosts", "a", "--nproc", "0"], "--nproc: '0' is not a number from 1 up",
                     id="no-ranks"),
        pytest.param(["--hosts", "a", "--", "--stepz", "3"], "unrecognized arguments: --stepz",
                     id="train-arguments"),
    ],
)  # fmt: skip
def test_wrong_use_ends_with_two_before_anything_starts(arguments, said, capsys, monkeypatch):
    monkeypatch.setenv("TORCHFT_LIGHTHOUSE", "http://127.0.0.1:1")

    with pytest.raises(SystemExit) as ended:
        main(["--group", "rg_1", *arguments])

    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_second_signal_does_not_disturb_the_ending():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        end_on_signals()
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

    assert ended.value.code == 143
