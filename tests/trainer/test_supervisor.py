"""The supervisor on a fake timeline: launches, hosts and answers are scripts."""

import itertools

import pytest

from lightkeeper.trainer.supervisor import MARK, Launcher, Supervisor, main
from lightkeeper.worker_server.rank.admission import Admitted, MonitorAway, Refused


class World:
    """Launches end by script: (seconds until they leave, return code); None runs for ever."""

    def __init__(self, launches, *, answers=None, stop_at=1000.0):
        self.now = 0.0
        self.events = []
        self.started, self.stopped, self.swept, self.closed = [], [], 0, 0
        self._script = iter(launches)
        self._answers = answers or {}
        self._stop_at = stop_at

    # launcher
    def start(self, host):
        self.started.append((self.now, host))
        return FakeLaunch(self, len(self.started), next(self._script))

    def close(self):
        self.closed += 1
        return []

    # admission: the last answer of a list stays
    def admission(self, host):
        answers = self._answers.get(host, [Admitted()])
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def emit(self, event, **facts):
        self.events.append((event, facts))

    def wait(self, seconds):
        self.now = min(self.now + seconds, self._stop_at)
        return self.now >= self._stop_at

    def run(self, hosts="host-1,spare-1", backoff_s=1.0):
        supervisor = Supervisor(
            hosts.split(","),
            launcher=self,
            admission=self.admission,
            emit=self.emit,
            wait=self.wait,
            clock=lambda: self.now,
            backoff_s=backoff_s,
        )
        return supervisor.run()

    def names(self):
        return [event for event, _ in self.events]


class FakeLaunch:
    def __init__(self, world, pid, script):
        self.pid, self._world = pid, world
        self._leaves_at, self._code = (
            (None, None) if script is None else (world.now + script[0], script[1])
        )

    def poll(self):
        gone = self._leaves_at is not None and self._world.now >= self._leaves_at - 1e-9
        return self._code if gone else None

    def stop(self):
        self._world.stopped.append(self.pid)

    def sweep(self):
        self._world.swept += 1
        return [4711]


def test_a_training_that_finished_is_not_started_again():
    world = World([(60, 0)])

    assert world.run() is True
    assert world.started == [(0.0, "host-1")]
    assert world.names() == ["started", "left"]
    assert world.closed == 1


def test_a_group_that_left_is_swept_and_started_again_after_the_backoff():
    world = World([(60, 1), (60, -9), (60, 0)])

    assert world.run(backoff_s=2.0) is True
    assert [round(at, 6) for at, _ in world.started] == [0.0, 62.0, 124.0]
    assert world.swept == 3
    assert world.events[1] == (
        "left", {"host": "host-1", "rc": 1, "lived_s": pytest.approx(60), "killed": [4711]}
    )  # fmt: skip


def test_launches_that_fail_at_once_are_paused_longer_and_longer_up_to_a_limit():
    world = World(itertools.repeat((0, 1)), stop_at=130.0)
    world.run()

    pauses = [b - a for (a, _), (b, _) in itertools.pairwise(world.started)]
    assert [round(pause, 6) for pause in pauses] == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_refused_host_makes_way_for_the_next_one_and_it_is_said_once():
    world = World([(60, 1), (60, 0)], answers={"host-1": [Refused("quarantined")]})
    world.run()

    assert [host for _, host in world.started] == ["spare-1", "spare-1"]
    assert world.events[0] == ("refused", {"host": "host-1", "reason": "quarantined"})
    assert world.names().count("refused") == 1


def test_a_host_is_asked_for_before_every_start_so_a_released_one_is_used_again():
    answers = {"host-1": [Admitted(), Refused("quarantined"), Admitted()]}
    world = World([(60, 1), (60, 1), (60, 0)], answers=answers)
    world.run()

    assert [host for _, host in world.started] == ["host-1", "spare-1", "host-1"]


def test_when_all_refuse_it_waits_and_says_so_once_until_one_admits():
    answers = {
        "host-1": [Refused("a"), Refused("a"), Refused("a"), Admitted()],
        "spare-1": [Refused("b")],
    }
    world = World([(60, 0)], answers=answers)
    world.run()

    assert world.started == [(3.0, "host-1")]
    assert world.names() == ["refused", "refused", "waiting", "started", "left"]


def test_it_can_be_stopped_while_all_refuse():
    world = World([], answers={"host-1": [Refused("a")]}, stop_at=10.0)

    assert world.run("host-1") is False
    assert world.closed == 1


def test_a_monitor_that_is_away_admits_and_this_is_said():
    answers = {"host-1": [MonitorAway("refused"), MonitorAway("refused"), Admitted()]}
    world = World([(60, 1), (60, 1), (60, 0)], answers=answers)
    world.run()

    assert [host for _, host in world.started] == ["host-1"] * 3
    assert world.names() == [
        "monitor_away", "started", "left", "monitor_away", "started", "left", "started", "left",
    ]  # fmt: skip


def test_while_the_monitor_is_away_a_host_last_refused_is_not_the_first_choice():
    answers = {"host-1": [Refused("quarantined"), MonitorAway("gone")], "spare-1": [Admitted()]}
    world = World([(60, 1), (60, 0)], answers=answers)
    world.run()

    assert [host for _, host in world.started] == ["spare-1", "spare-1"]


def test_a_stop_ends_the_launch_and_whatever_was_left():
    world = World([None], stop_at=5.0)

    assert world.run() is False
    assert world.stopped == [1]
    assert world.names() == ["started", "stopped"]
    assert world.closed == 1


def test_a_launcher_that_breaks_still_ends_what_was_started():
    world = World([(60, 1)])

    with pytest.raises(StopIteration):  # the script has no second launch
        world.run()
    assert world.closed == 1


# -- the environment of a launch --------------------------------------------------------------


def test_ranks_know_their_group_and_host_and_carry_the_mark(monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "1234")
    launcher = Launcher("rg_1", 2, ["--steps", "3"], monitor="http://m:1")

    environ = launcher.environment("spare-1", "run.1")

    assert environ["REPLICA_GROUP"] == "rg_1"
    assert environ["LIGHTKEEPER_HOST"] == "spare-1"
    assert environ["LIGHTKEEPER_MONITOR"] == "http://m:1"
    assert environ[MARK] == "run.1;"
    assert "MASTER_PORT" not in environ
    assert launcher.command()[-4:] == ["-m", "lightkeeper.trainer.train", "--steps", "3"]
    assert "--nproc-per-node=2" in launcher.command()


# -- wrong use --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["--hosts", ","], "--hosts names no host", id="no-host"),
        pytest.param(["--hosts", "a", "--nproc", "0"], "--nproc: '0' is not a number from 1 up",
                     id="no-ranks"),
        pytest.param(["--hosts", "a", "--monitor", "m"], "--monitor: 'm' is no monitor's address, "
                     "expected http://HOST:PORT[,URL]", id="monitor"),
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
