"""However a rank was started, it is alive while it runs and its own exit code comes back."""

from __future__ import annotations

import _thread
import os
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lightkeeper.monitor.service import Service
from lightkeeper.worker_server.rank import attach
from lightkeeper.worker_server.rank.page.writer import serves_training
from lightkeeper.worker_server.run_dir import start_ticks
from lightkeeper.worker_server.sidecar.process import GoneError, PidfdProcess
from tests.monitor.api import Api, options
from tests.worker_server.ranks import Rank, environment, eventually, run_python

SCRIPT = """
import os, sys, time
from pathlib import Path
import lightkeeper
if __name__ == "__main__":
    reporter = lightkeeper.attach(job="odd", group="rg_0", rank=0, world_size=1)
    run_dir, step = Path(os.environ["LIGHTKEEPER_RUN_DIR"]), 0
    (run_dir / "pid").write_text(str(os.getpid()))
    while not (run_dir / "stop").exists():
        step += 1
        reporter.step(step)
        time.sleep(0.02)
    (run_dir / "ended").write_text("7")
    sys.exit(7)
"""

STARTS = {
    "stdout closed": "exec {run} 1>&-",
    "all closed": "exec {run} 0<&- 1>&- 2>&-",
    "stdin and stderr closed": "exec {run} 0<&- 2>&-",
    "a full device": "exec {run} >/dev/full 2>&1",
    "few descriptors": "ulimit -n 16; exec {run}",
    "setsid": "exec setsid --wait {run}",
    "a daemon": "( setsid {run} </dev/null >/dev/null 2>&1 & )",
    "disowned": "{run} & disown",
}


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.integration
@pytest.mark.parametrize("how", STARTS)
def test_a_rank_is_alive_however_its_streams_and_its_process_were_made(how, script, run_dir):
    words = shlex.join([sys.executable, str(script)])
    shell = subprocess.Popen(
        ["bash", "-c", STARTS[how].format(run=words)], env=environment(run_dir), cwd=run_dir.parent,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        _lives_and_steps(run_dir)
    finally:
        (run_dir / "stop").touch()
        shell.communicate(timeout=30)
    eventually((run_dir / "ended").exists, "the script's own end")
    assert shell.returncode == (0 if how in ("a daemon", "disowned") else 7)


def _lives_and_steps(run_dir) -> None:
    pid = int(eventually(lambda: _text(run_dir / "pid"), "the rank attaches"))
    rank = Rank(pid, run_dir)
    first = rank.state()
    later = eventually(
        lambda: (new := rank.state()).step.step > first.step.step + 5 and new, "it steps"
    )
    assert (first.process.alive, later.process.alive) == (True, True)
    assert later.ending is None


def _text(path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.integration
def test_with_hardly_a_descriptor_training_has_its_own_exit_code(script, run_dir):
    (run_dir / "stop").touch()
    done = subprocess.run(
        ["bash", "-c", f"ulimit -n 8; exec {shlex.join([sys.executable, str(script)])}"],
        env=environment(run_dir), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 7, done.stderr


@pytest.mark.integration
def test_a_monitor_finds_a_rank_without_streams_healthy_and_has_no_incident(
    script, run_dir, tmp_path
):
    words = f"exec {shlex.join([sys.executable, str(script)])} 0<&- 1>&- 2>&-"
    with Service(options(tmp_path, token=None)) as service:
        monitor = Api(service)
        env = environment(run_dir, LIGHTKEEPER_MONITOR=monitor.url)
        rank = subprocess.Popen(["bash", "-c", words], env=env)

        def health() -> list[str]:
            monitor.tick_in_turn()
            return [row["health"] for row in monitor.get("/v1/ranks")["ranks"]]

        try:
            eventually(lambda: health() == ["healthy"], "it is healthy", within_s=60)
            assert monitor.get("/v1/incidents")["incidents"] == []
        finally:
            (run_dir / "stop").touch()
            rank.wait(30)
    assert rank.returncode == 7


FORKS = """
import multiprocessing, runpy, sys
def train():
    runpy.run_path(sys.argv[2], run_name="__main__")
if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[1]).Process(target=train)
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


@pytest.mark.integration
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_rank_that_multiprocessing_starts_is_alive(method, script, run_dir, tmp_path):
    (tmp_path / "launch.py").write_text(FORKS)
    launcher = subprocess.Popen(
        [sys.executable, tmp_path / "launch.py", method, script], env=environment(run_dir)
    )
    try:
        _lives_and_steps(run_dir)
    finally:
        (run_dir / "stop").touch()
        launcher.wait(30)
    assert launcher.returncode == 7


# -- a descriptor that is not what it should be ---------------------------------------------------


def test_a_descriptor_that_is_no_pidfd_of_the_process_is_not_believed():
    child = subprocess.Popen(["sleep", "60"])
    me = os.getpid()
    for wrong in (os.open(os.devnull, os.O_RDONLY), os.pidfd_open(child.pid), 987_654):
        process = PidfdProcess(me, start_ticks(me), wrong)
        if wrong != 987_654:
            child.kill()  # the one that is held, wrongly, dies
            os.close(wrong)
        assert not process.wait_death(0.05)
        assert process.look(0.0).alive
        process.close()
    child.wait()


def test_a_descriptor_of_a_process_that_is_gone_still_says_how_it_ended():
    child = subprocess.Popen(["true"])
    ticks, pidfd = start_ticks(child.pid), os.pidfd_open(child.pid)
    child.wait()
    process = PidfdProcess(child.pid, ticks, pidfd)
    assert process.wait_death(0)
    process.close()
    with pytest.raises(GoneError):
        PidfdProcess(child.pid, ticks, os.open(os.devnull, os.O_RDONLY))


def test_a_death_that_proc_does_not_show_is_not_believed():
    """The descriptor is exchanged after it was checked."""
    me, child = os.getpid(), subprocess.Popen(["true"])
    process, other = PidfdProcess(me, start_ticks(me)), os.pidfd_open(child.pid)
    child.wait()
    os.dup2(other, process._fd)
    os.close(other)
    assert not process.wait_death(0)
    assert f"Pid:\t{me}\n" in Path(f"/proc/self/fdinfo/{process._fd}").read_text()
    assert not process.wait_death(0)
    process.close()


PROGRAMS = {
    "waits for any child": """
kids = [os.fork() or os._exit(0) for _ in "12"]
print(sorted(os.wait()[0] for _ in kids) == sorted(kids))
try: os.wait()
except ChildProcessError: print("no other")
""",
    "joins all its threads": """
import threading
for thread in threading.enumerate()[1:]: thread.join()
time.sleep(1.5)
print(threading.active_count())
""",
    "takes a signal later": """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.kill(os.getpid(), signal.SIGUSR1)
print(signal.sigwait([signal.SIGUSR1]).name)
""",
    "closes every file and forks": """
os.closerange(3, 1024)
files = [open("/dev/zero") for _ in range(420)]
if not os.fork():
    print({os.readlink(f"/proc/self/fd/{file.fileno()}") for file in files}, flush=True)
    os._exit(0)
os.wait()
""",
    "has a module of its own": "from secrets import KEY; print(KEY)",
    "has no file left at its end": """
time.sleep(1)
resource.setrlimit(resource.RLIMIT_AS, (60 << 20,) * 2)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
print("ends")
""",
}
SAYS = ["True\nno other\n", "1\n", "SIGUSR1\n", "{'/dev/zero'}\n", "mine\n", "ends\n"]


@pytest.mark.integration
@pytest.mark.parametrize(("name", "says"), [*zip(PROGRAMS, SAYS, strict=True)], ids=PROGRAMS)
def test_a_program_meets_nothing_of_ours(name, says, tmp_path, run_dir):
    (tmp_path / "secrets.py").write_text("KEY = 'mine'\n")
    (tmp_path / "train.py").write_text(f"import os, resource, signal, time\n{PROGRAMS[name]}")
    words = ("-m", "lightkeeper.worker_server", "train.py")
    done = run_python(*words, run_dir=run_dir, cwd=tmp_path, RANK="0", WORLD_SIZE="1")
    assert (done.returncode, done.stdout) == (0, says), done.stderr


@pytest.mark.integration
def test_a_rank_that_executes_another_program_is_served_no_longer(script, run_dir):
    script.write_text(SCRIPT.replace("step += 1", "os.execvp('sleep', ['sleep', '60'])"))
    with subprocess.Popen([sys.executable, script], env=environment(run_dir)) as rank:
        eventually(lambda: list(run_dir.glob("*.page")), "it attaches")
        eventually(lambda: not list(run_dir.glob("*.page")), "its WorkerServer has left")
        rank.kill()


def test_a_thread_that_c_started_stays_unknown_to_threading():
    answers: list[bool] = []
    before = threading.active_count()
    _thread.start_new_thread(lambda: answers.append(serves_training()), ())
    eventually(lambda: answers == [True], "it is known as one of autograd's")
    assert threading.active_count() == before


def test_a_chore_that_fails_leaves_the_beat_unknown_to_threading(recwarn):
    def fails() -> None:
        threading.current_thread()  # as logging does, which may be given all warnings
        raise OSError

    before, chores = threading.active_count(), [fails]
    beat = attach.Beat(lambda: None, None, chores, lambda: None)
    beat.start()
    eventually(lambda: not chores, "the chore is dropped")
    assert threading.active_count() == before
    beat.stop()


def test_an_attach_that_gets_no_thread_leaves_no_page(run_dir, monkeypatch, recwarn):
    def no(self) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(attach.Beat, "start", no)
    monkeypatch.setattr(attach, "SidecarProcess", lambda files: files)
    attach.attach({"LIGHTKEEPER_RUN_DIR": str(run_dir), "RANK": "0", "WORLD_SIZE": "1"})
    assert list(run_dir.glob("*.page")) == []
    monkeypatch.setattr(attach, "_attached", None)
