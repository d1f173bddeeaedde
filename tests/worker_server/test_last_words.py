"""What a rank leaves when it ends, and that it leaves nothing on the job's own stderr."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank import last_words
from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.rank.page.reader import PageReader
from lightkeeper.worker_server.rank.page.writer import PageWriter
from lightkeeper.worker_server.run_dir import RankFiles, start_ticks
from lightkeeper.worker_server.sidecar.black_box import BlackBox
from lightkeeper.worker_server.sidecar.last_words import EndFacts, Remains, StderrTail, port_taken
from lightkeeper.worker_server.sidecar.machine import Machine
from lightkeeper.worker_server.sidecar.process import (
    OomWatch,
    PidfdProcess,
    decode_status,
    wait_status,
)
from lightkeeper.worker_server.sidecar.recorders import ControlPlane
from lightkeeper.worker_server.sidecar.stacks import Stacks
from lightkeeper.worker_server.sidecar.text import answer_text
from tests.worker_server.doubles import Bench
from tests.worker_server.pages import identity
from tests.worker_server.ranks import run_each
from tests.worker_server.wire_values import parse_last_words

RAISED = ("ValueError: bad", wire.Trace("Traceback ...", "uncaught in the main thread", 1.0))
IN_THREAD = ("KeyError: 1", wire.Trace("Traceback ...", 'uncaught in the thread "loader"', 1.0))
LONG_AGO = ("ValueError: bad", wire.Trace("Traceback ...", "uncaught in the main thread", 900.0))
CRASHED = "Fatal Python error: Segmentation fault"
CRASH = wire.Trace(f"{CRASHED}\n\nThread ...", "faulthandler", 0.5)


def dead(code=None, signum=None):
    return wire.Process(False, None, dead_age_s=0.5, exit_code=code, exit_signal=signum)


@pytest.mark.parametrize(
    ("process", "facts", "sentence"),
    [
        (wire.Process(True, "S"), {}, "It lives."),
        (wire.Process(True, "S"), {"closed": True},
         "It lives, and has announced that its work is over."),
        (dead(0), {}, "Exited with code 0."),
        (dead(0), {"closed": True},
         "Exited with code 0, after it had announced that its work was over."),
        (dead(1), {"exception": RAISED}, "Raised ValueError: bad and exited with code 1."),
        (dead(1), {"exception": IN_THREAD}, "Exited with code 1."),
        (dead(1), {"exception": LONG_AGO}, "Exited with code 1."),
        (dead(0), {"exception": RAISED}, "Exited with code 0."),
        (dead(None, "SIGKILL"), {}, "Killed by SIGKILL."),
        (dead(None, "SIGKILL"), {"sent": ("SIGTERM", "SIGKILL")},
         "Killed by SIGKILL; sent by its WorkerServer (eviction)."),
        (dead(None, "SIGKILL"), {"oom": "the OOM killer ended 1"},
         "Killed by SIGKILL; the OOM killer ended 1."),
        (dead(None, "SIGTERM"), {"oom": "it did"}, "Killed by SIGTERM."),
        (dead(None, "SIGHUP"), {},
         "Killed by SIGHUP; as when its terminal or ssh session is closed."),
        (dead(None, "SIGSEGV"), {"crash": CRASH},
         "Killed by SIGSEGV; Fatal Python error: Segmentation fault."),
        (dead(), {"crash": CRASH},
         f"Ended by a fatal error ({CRASHED}); exit status not known."),
        (dead(), {"exception": RAISED}, "Raised ValueError: bad; exit status not known."),
        (dead(), {}, "Ended; how is not known (its parent has collected the exit status)."),
    ],
)  # fmt: skip
def test_one_true_sentence_says_how_it_ended(process, facts, sentence):
    usual = {"closed": False, "exception": None, "crash": None, "sent": (), "oom": ""}
    assert EndFacts(process, **{**usual, **facts}).sentence() == sentence


@pytest.mark.parametrize(
    ("status", "code", "signum"),
    [(0, 0, None), (9 << 8, 9, None), (11, None, "SIGSEGV"), (9 | 128, None, "SIGKILL"),
     (36, None, "signal 36"), (None, None, None)],
)  # fmt: skip
def test_a_wait_status_is_a_code_or_a_signal(status, code, signum):
    assert decode_status(status) == (code, signum)


@pytest.mark.parametrize("ending", ["exit", "signal"])
def test_the_status_of_a_zombie_is_known_to_others_than_its_parent(ending):
    child = subprocess.Popen(["sleep", "100"] if ending == "signal" else ["sh", "-c", "exit 9"])
    pidfd = os.pidfd_open(child.pid)
    try:
        ticks = start_ticks(child.pid)
        if ending == "signal":
            child.send_signal(signal.SIGTERM)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        status = wait_status(pidfd, child.pid, ticks)
        stat = Path(f"/proc/{child.pid}/stat").read_text()
        assert status == (signal.SIGTERM if ending == "signal" else 9 << 8), stat
        child.wait(10)
        later = wait_status(pidfd, child.pid, ticks)
        assert later in (status, None)  # None before Linux 6.15
    finally:
        os.close(pidfd)


def test_a_zombie_that_may_not_be_looked_into_has_no_known_status(monkeypatch):
    """The kernel says 0 to whoever may not know."""
    child = subprocess.Popen(["true"])
    ticks = start_ticks(child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    pidfd = os.pidfd_open(child.pid)
    try:
        assert wait_status(pidfd, child.pid, ticks) == 0
        read_text = Path.read_text

        def forbidden(path, *args, **kw):
            if path.name == "io":
                raise PermissionError(path)
            return read_text(path, *args, **kw)

        monkeypatch.setattr(Path, "read_text", forbidden)
        assert wait_status(pidfd, child.pid, ticks) is None
    finally:
        os.close(pidfd)
        child.wait(10)


def test_oom_kills_count_from_the_look_before_the_last_at_the_living(tmp_path):
    folder = tmp_path / "memory"
    folder.mkdir()
    for path in (tmp_path / "memory.events", folder / "memory.oom_control"):
        path.write_text("low 0\noom_kill_disable 0\noom_kill 3\n")
    for path in (tmp_path / "memory.max", folder / "memory.limit_in_bytes"):
        path.write_text(f"{512 << 20}\n")
    watch = OomWatch(os.getpid(), tmp_path)
    assert watch.said() == ""
    for path in (tmp_path / "memory.events", folder / "memory.oom_control"):
        path.write_text("oom_kill 5\n")
    said = watch.said()
    assert said.startswith("the OOM killer ended 2 of its cgroup /")
    assert said.endswith(f", limit 512 MiB: likely pid {os.getpid()}")
    watch.look()  # who was killed is there for a while
    assert watch.said() == said
    watch.look()
    assert watch.said() == ""


def test_a_cgroup_without_a_limit_has_none_in_the_sentence(tmp_path):
    for folder in (tmp_path, tmp_path / "memory"):
        folder.mkdir(exist_ok=True)
        (folder / "memory.max").write_text("max\n")
        for name in ("memory.events", "memory.oom_control"):
            (folder / name).write_text("oom_kill 0\n")
    watch = OomWatch(os.getpid(), tmp_path)
    for path in tmp_path.glob("**/memory.[eo]*"):
        path.write_text("oom_kill 1\n")
    assert "limit" not in watch.said()


def test_without_a_cgroup_to_read_nothing_is_said_of_oom(tmp_path):
    assert OomWatch(os.getpid(), tmp_path).said() == ""


class FakeProc:
    """A /proc with one process whose stderr is `target`."""

    def __init__(self, folder, target):
        self.root = folder / "proc"
        (self.root / "7" / "fd").mkdir(parents=True)
        self.link = self.root / "7" / "fd" / "2"
        self.link.symlink_to(target)

    def share(self, pid, target):
        (self.root / str(pid) / "fd").mkdir(parents=True)
        (self.root / str(pid) / "fd" / "1").symlink_to(target)


def test_the_tail_of_stderr_survives_the_file_and_the_process(tmp_path):
    log = tmp_path / "err"
    log.write_text("".join(f"line {n}\n" for n in range(5000)))
    proc = FakeProc(tmp_path, log)
    proc.share(8, log)
    proc.share(9, "/dev/null")
    tail = StderrTail(7, proc.root)
    tail.look()
    log.unlink()
    proc.link.unlink()
    trace, error = tail.read()
    assert error is None
    assert trace.text.splitlines() == [f"line {n}" for n in range(5000 - 64, 5000)]
    assert trace.source == f"{log} (shared with 1 more process(es) when it was opened)"


def test_a_tail_is_of_whole_lines_and_bounded(tmp_path):
    log = tmp_path / "err"
    log.write_text("x" * 1000 + "\n" + "".join(f"{n:01000d}\n" for n in range(40)))
    tail = StderrTail(7, FakeProc(tmp_path, log).root)
    tail.look()
    trace, _ = tail.read()
    assert len(trace.text) <= 16 * 1024
    assert {len(line) for line in trace.text.splitlines()} == {1000}


def test_stderr_that_is_no_file_is_told_with_the_remedy(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    tail = StderrTail(7, FakeProc(tmp_path, fifo).root)
    tail.look()
    trace, error = tail.read()
    assert trace is None
    assert error.startswith("stderr is a pipe: what was written there is not kept; with torchrun")


def test_a_stderr_redirected_later_is_followed(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("first\n")
    second.write_text("second\n")
    proc = FakeProc(tmp_path, first)
    tail = StderrTail(7, proc.root)
    tail.look()
    proc.link.unlink()
    proc.link.symlink_to(second)
    tail.look()
    assert tail.read()[0].text == "second\n"


class Self:
    pid = os.getpid()
    sent = ()

    def wait_death(self, timeout_s):
        return False


def test_torchelastics_file_is_given_unless_a_former_attempt_wrote_it(tmp_path):
    page = tmp_path / "a.page"
    writer = PageWriter.create(page, identity(), 1)
    writer.write_note(layout.NOTE_EXCEPTION, "the main thread\nValueError: bad\nTraceback\n")
    error = tmp_path / "error.json"
    error.write_text('{"message": "boom"}')
    remains = Remains(
        PageReader(page), Self(), tmp_path / "a.crash",
        {"TORCHELASTIC_ERROR_FILE": str(error)}, Machine(tmp_path, wire.Host("h")),
    )  # fmt: skip
    words = remains.words(wire.Process(True, "S"))
    assert (words.error_file.text, words.error_file.source) == ('{"message": "boom"}', str(error))
    assert (words.exception.text, words.exception.source) == (
        "Traceback\n", "uncaught in the main thread",
    )  # fmt: skip
    assert words.crash is None
    os.utime(error, (time.time() - 1000,) * 2)
    assert remains.words(wire.Process(True, "S")).error_file is None


SNIPPETS = {
    "quick exit": "",
    "long chain": "try: 1 / 0\nexcept Exception as e: raise ValueError('x' * 9000) from e",
    "recursion": "f = lambda: f()\nf()",
    "own faulthandler": "import faulthandler as f, os; f.enable(all_threads=False); os.abort()",
}


@pytest.fixture(scope="module")
def endings(module_dir):
    code = "import lightkeeper; lightkeeper.attach()\n{}\n"
    cases = {
        f"{name}{switch}": (
            code.format(snippet), {"LIGHTKEEPER": switch, "PYTHONFAULTHANDLER": ""}
        )
        for name, snippet in SNIPPETS.items() for switch in "01"
    }  # fmt: skip
    return run_each(cases, module_dir, "-W", "always::ResourceWarning")


@pytest.mark.integration
@pytest.mark.parametrize("name", SNIPPETS)
def test_output_and_exit_code_are_the_same_with_and_without_us(endings, name):
    """Also of files and processes left open, where such warnings are on."""
    without, attached = (
        (code, stdout, re.sub(r"0x[0-9a-f]+|repeated \d+", "N", stderr))
        for code, stdout, stderr, _ in (endings[f"{name}0"], endings[f"{name}1"])
    )
    assert attached == without


def test_a_stderr_that_has_not_changed_is_not_asked_for_again_of_its_file_system(tmp_path):
    log = tmp_path / "err"
    log.write_text("last\n")
    tail = StderrTail(7, FakeProc(tmp_path, log).root)
    tail.look()
    log.unlink()  # looking through the link fails from now on; on NFS it could wait for ever
    tail.look()
    assert tail.read()[0].text == "last\n"


class Left:
    """What one dead rank left: a page, a stderr, an error file."""

    def __init__(self, folder):
        self.page = PageWriter.create(folder / "a.page", identity(), 1)
        self.stderr, self.error = folder / "err", folder / "error.json"
        self.stderr.write_text("starting\n")
        self.remains = Remains(
            PageReader(folder / "a.page"), Self(), folder / "a.crash",
            {"TORCHELASTIC_ERROR_FILE": str(self.error)}, Machine(folder, wire.Host("h")),
        )  # fmt: skip
        self.remains._stderr = StderrTail(7, FakeProc(folder, self.stderr).root)
        self.remains._stderr.look()

    def ending(self, process):
        self.remains.learn(process)
        return self.remains.ending(process)


@pytest.fixture
def left(tmp_path):
    return Left(tmp_path)


def traceback_of(line, exception):
    head = "Traceback (most recent call last):"
    return f'{head}\n  File "/job/train.py", line {line}, in step\n    x\n{exception}\n'


AT = {line: wire.Frame("step", "train.py", line) for line in (1, 2, 3)}


def test_an_ending_prefers_the_exception_noted_to_the_file_and_the_file_to_stderr(left):
    left.stderr.write_text(traceback_of(3, "KeyError: 3"))
    for content in ("", '{"message": "of another form"}', "half"):
        left.error.write_text(content)
        ending = wire.Ending("Exited with code 1.", "KeyError: 3", AT[3], of_peers=False)
        assert left.ending(dead(1)) == ending
    message = {
        "message": "OSError: 2",
        "extraInfo": {"py_callstack": traceback_of(2, "OSError: 2")},
    }
    left.error.write_text(json.dumps({"message": message}))
    ending = wire.Ending("Exited with code 1.", "OSError: 2", AT[2], of_peers=False)
    assert left.ending(dead(1)) == ending
    noted = f"the main thread\nValueError: 1\n{traceback_of(1, 'ValueError: 1')}"
    left.page.write_note(layout.NOTE_EXCEPTION, noted)
    message = "Raised ValueError: 1 and exited with code 1."
    assert left.ending(dead(1)) == wire.Ending(message, "ValueError: 1", AT[1], of_peers=False)


GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553]"
ENFORCED = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    f"  what():  [enforce fail at {GLOO[1:-1]}] op.preamble.length <= op.nbytes. 8 vs 4.\n"
)
EXITING = (
    "Fatal Python error: Aborted\n\nThread 0x7f (most recent call first):\n  <no Python frame>\n"
)
LISTENER = "torch.distributed.DistNetworkError: no port, code: -98, name: EADDRINUSE"


@pytest.mark.parametrize(
    ("said", "process", "of_peers", "sentence"),
    [
        (traceback_of(3, f"RuntimeError: {GLOO} closed"), dead(1), True,
         "Exited with code 1. RuntimeError comes from other ranks, or from a wait for them."),
        (traceback_of(3, "KeyError: 3"), dead(1), False,
         "Exited with code 1. KeyError comes from its own code."),
        (traceback_of(3, LISTENER), dead(1), False,
         "Exited with code 1. torch.distributed.DistNetworkError comes from its own code."),
        (ENFORCED, dead(None, "SIGABRT"), True,
         "Killed by SIGABRT. gloo::EnforceNotMet comes from other ranks, or from a wait for them."),
        ("terminate called without an active exception\n", dead(None, "SIGABRT"), None,
         "Killed by SIGABRT."),
        ("Fatal Python error: Aborted\n", dead(None, "SIGABRT"), None, "Killed by SIGABRT."),
        (EXITING, dead(None, "SIGABRT"), False, "Killed by SIGABRT."),
        ("Fatal Python error: Segmentation fault\n", dead(None, "SIGSEGV"), False,
         "Killed by SIGSEGV."),
        ("", dead(1), None, "Exited with code 1."),
        ("", dead(None, "SIGKILL"), None, "Killed by SIGKILL."),
    ],
    ids=[
        "gloo", "own", "own address", "C++", "no words", "aborted", "at its exit", "crashed",
        "silent", "killed",
    ],
)  # fmt: skip
def test_an_ending_says_whether_its_exception_is_of_its_peers(
    left, said, process, of_peers, sentence
):
    left.stderr.write_text(said)
    assert left.ending(process).of_peers is of_peers
    words = left.remains.words(process)
    assert words.ended == sentence
    assert sentence in answer_text(words, 5)


@pytest.mark.parametrize(
    ("said", "process"),
    [
        (traceback_of(3, "KeyError: 3"), dead(0)),
        (traceback_of(3, "KeyError: 3"), dead(None, "SIGKILL")),
        (traceback_of(3, "KeyError: 3"), dead()),
        (traceback_of(3, "KeyError: 3") + "went on\n" * 30, dead(1)),
        (traceback_of(3, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"),
         dead(1)),
    ],
    ids=["ended well", "killed", "nobody knows how", "survived it", "torchrun's"],
)  # fmt: skip
def test_a_traceback_on_stderr_that_ended_nothing_is_no_ending(left, said, process):
    left.stderr.write_text(said)
    assert left.ending(process).exception is None


def test_a_stderr_that_another_rank_shares_is_nobodys(left, tmp_path):
    left.stderr.write_text(traceback_of(3, "KeyError: 3"))
    (tmp_path / "other").mkdir()
    proc = FakeProc(tmp_path / "other", left.stderr)
    proc.share(5, left.stderr)
    (proc.root / "7" / "stat").write_text("7 (python) S 5 7 7 0")
    alone = left.remains._stderr = StderrTail(7, proc.root)
    alone.look()
    assert left.ending(dead(1)).exception == "KeyError: 3"  # its launcher's too
    proc.share(8, left.stderr)
    shared = left.remains._stderr = StderrTail(7, proc.root)
    shared.look()
    assert left.ending(dead(1)).exception is None


def test_an_ending_is_one_line_of_bounded_length(left):
    message = "RuntimeError: " + "x" * 5000
    noted = f"the main thread\n{message[:400]}\n{traceback_of(1, message)}"
    left.page.write_note(layout.NOTE_EXCEPTION, noted)
    ending = left.ending(dead(1))
    assert len(ending.exception) == len(ending.sentence) == wire.LINE_MAX_CHARS
    assert ending.frame == AT[1]


def test_what_torchft_kept_from_the_program_is_why_it_ended(left, monkeypatch):
    """torchft's DDP asserts, and says nothing of the error that came before."""
    asserts = compile("assert False", "/site/torchft/ddp.py", "exec")
    own = compile("assert False", "/job/train.py", "exec")
    exceptions = []
    for code in (asserts, own):
        last_words.keep_hidden_error(
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")
        )
        last_words.keep_hidden_error(
            RuntimeError("Connection closed by peer")
        )  # what follows from it
        with pytest.raises(AssertionError) as raised:
            exec(code)
        monkeypatch.setattr(last_words, "_page", left.page)
        last_words._note("the main thread", raised.value)
        ending = left.ending(dead(1))
        exceptions.append((ending.exception, ending.of_peers))
        last_words.keep_hidden_error(None)
    assert exceptions == [
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", None),
        ("AssertionError", False),
    ]


@pytest.mark.parametrize(
    ("hidden", "whose"),
    [("RuntimeError: no such thing", None), (f"RuntimeError: {GLOO} closed", True),
     ("TimeoutError: future did not complete within 0:01:00", True),
     ("torch.OutOfMemoryError: CUDA out of memory", False)],
)  # fmt: skip
def test_whose_an_exception_is_that_torchft_hid_is_told_by_its_type(left, hidden, whose):
    ddp = "/x/site-packages/torchft/ddp.py"
    asserts = traceback_of(1, "AssertionError").replace("/job/train.py", ddp)
    left.page.write_note(layout.NOTE_EXCEPTION, f"the main thread\n{hidden}\n{asserts}")
    ending = left.ending(dead(1))
    assert (ending.exception, ending.of_peers) == (hidden, whose)
    assert ending.detail == "it died of TorchFT's bug 1 (docs/versions.md)"


def box_of(rank):
    path = next(p for p in rank.run_dir.glob("*.page") if PageReader(p).identity.pid == rank.pid)
    page = PageReader(path)
    process, files = PidfdProcess(rank.pid, page.start_ticks), RankFiles(path)
    return BlackBox(page, process, ControlPlane(files.socket), Stacks(process.pid), files)


@pytest.mark.integration
def test_last_words_of_a_rank_that_raised(start_rank, tmp_path):
    rank = start_rank("raise", stderr_to=tmp_path / "err")
    rank.says("ready")
    box = box_of(rank)  # it opens what it reads afterwards
    rank.process.stdin.close()
    rank.process.wait(20)
    words = box.last_words()
    how, _, whose = words.ended.partition(". ")
    assert how in (
        "Raised ValueError: bad data and exited with code 1",
        "Raised ValueError: bad data; exit status not known",  # before Linux 6.15
    )
    assert whose == "ValueError comes from its own code."
    assert words.exception.text.endswith("ValueError: bad data\n")
    assert words.stderr.text.endswith("ValueError: bad data\n")
    assert parse_last_words(wire.to_json(words)).ended == words.ended


@pytest.mark.integration
def test_last_words_of_a_rank_that_died_of_a_segfault(start_rank):
    rank = start_rank("segfault")
    rank.says("ready")
    box = box_of(rank)  # it opens what it reads afterwards
    rank.process.stdin.close()
    rank.process.wait(20)
    words = box.last_words()
    assert words.process.exit_signal in ("SIGSEGV", None)
    assert "Fatal Python error: Segmentation fault" in words.ended
    assert "rank_script.py" in words.crash.text
    assert "faulthandler, at the fatal signal" in box.stacks().text


class UnprintableError(ValueError):
    def __str__(self):
        raise RuntimeError("no text")


def test_an_error_that_torchft_hides_is_noted_where_it_was_raised_whatever_it_is(left, monkeypatch):
    monkeypatch.setattr(last_words, "_page", left.page)
    for error, noted in [(KeyError("ema"), "KeyError: 'ema'"), (UnprintableError(), "Unprintable")]:
        last_words.keep_hidden_error(None)
        last_words.keep_hidden_error(error)
        note = left.remains.page.note(layout.NOTE_HIDDEN, time.monotonic_ns())
        assert noted in note[0]
    last_words.keep_hidden_error(None)


OWN = """Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torchft/manager.py", line 963, in _manager_state_dict
    "user": {key: value() for key, value in self._user_state_dicts.items()},
  File "/job/train.py", line 41, in given
    raise KeyError("ema.decay")
KeyError: 'ema.decay'
"""
INSTALLED = """Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/ema/average.py", line 3, in state
KeyError: 3
"""
PEERS = """Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torchft/manager.py", line 1327, in wait
    self._work.wait()
RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:128: Connection reset by peer
"""


@pytest.mark.parametrize(
    ("text", "since_s", "sentence"),
    [
        (OWN, None, "KeyError: 'ema.decay' in given (train.py:41)"),
        (OWN, 60.0, "KeyError: 'ema.decay' in given (train.py:41)"),
        (OWN, 0.0, None),
        (PEERS, None, None),
        (INSTALLED, None, "KeyError: 3 in state (average.py:3)"),
        ("", None, None),
    ],
    ids=[
        "no commit yet",
        "since the last commit",
        "before it",
        "of its peers",
        "of a package",
        "nothing",
    ],
)
def test_an_error_of_its_own_that_torchft_hid_is_told_until_the_next_commit(
    page, tmp_path, text, since_s, sentence
):
    if text:
        page.write_note(layout.NOTE_HIDDEN, text)
    assert Bench(tmp_path / "a.page").box._remains.hidden(since_s) == sentence


def test_the_process_that_listens_on_a_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        text = f"the server socket has failed to listen. port: {port}, code: -98, name: EADDRINUSE"
        said = port_taken(text)
    assert said is not None
    assert said.startswith(f"port {port} is taken by ")
    assert said.endswith(f"(pid {os.getpid()})")
    assert port_taken(text) is None
