"""What the operating system tells of a rank's process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.run_dir import start_ticks
from lightkeeper.worker_server.sidecar.process import PidfdProcess
from tests.worker_server.tracers import traced

SLEEPER = """
import ctypes, threading, time
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)  # PR_SET_PTRACER, any
thread = threading.Thread(target=time.sleep, args=(1000,))
thread.start()
print(thread.native_id, flush=True)
"""


@pytest.fixture
def sleeper():
    """A process with two threads: itself as a sidecar sees it, and the second one's id."""
    with subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE) as child:
        thread = int(child.stdout.readline())
        process = PidfdProcess(child.pid, start_ticks(child.pid))
        yield process, thread
        process.close()
        child.kill()


@pytest.mark.integration
def test_who_traces_a_process_is_told_whether_it_is_held_or_goes_on(sleeper):
    process, _ = sleeper
    assert process.look(0.0).tracer is None
    with traced(process.pid) as pid:
        seen = process.look(0.0)
    assert seen.tracer == wire.Tracer(pid, seen.tracer.name)
    assert seen.tracer.name.startswith("python")
    assert not seen.stopped
    with traced(process.pid, stop=True) as pid:
        seen = process.look(0.0)
    assert (seen.state, seen.tracer.pid) == ("t", pid)
    assert process.look(0.0).tracer is None


@pytest.mark.integration
@pytest.mark.parametrize("handles", [True, False])
def test_a_handler_of_the_program_for_sigterm_is_seen_also_after_its_end(handles):
    program = "import signal\n"
    program += "signal.signal(signal.SIGTERM, lambda *_: exit(0))\n" if handles else ""
    program += "print(flush=True)\nsignal.pause()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        process = PidfdProcess(child.pid, start_ticks(child.pid))
        assert process.look(0.0).handles_sigterm is handles
        child.terminate()
        while not process.wait_death(0):
            process.look(0.0)  # also while it exits and has no handlers any more
        assert process.look(0.0).handles_sigterm is handles
        process.close()


@pytest.mark.integration
def test_a_tracer_of_one_thread_is_found_among_all(sleeper):
    process, thread = sleeper
    with traced(thread) as pid:
        assert process.look(0.0).tracer is None
        assert process.tracer_of_a_thread().pid == pid
    assert process.tracer_of_a_thread() is None


@pytest.mark.integration
def test_the_py_spy_of_a_worker_server_is_no_tracer(sleeper):
    process, _ = sleeper
    runs_it = "import subprocess, sys; subprocess.run(sys.argv[2:])"
    with traced(
        process.pid, by=(sys.executable, "-Sc", runs_it, "lightkeeper.worker_server.sidecar")
    ):
        assert process.look(0.0).tracer is None
