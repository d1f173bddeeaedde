import os
import subprocess
import sys

import pytest

from trainer.demo.undisturbed import Undisturbed, look, memory, role_of


@pytest.mark.parametrize(
    ("command", "role"),
    [
        ("python -u -m trainer.train --steps 0", "ranks"),
        ("python -m torch.distributed.run --standalone -m trainer.train", "launchers"),
        ("python -m trainer.supervisor --group rg_0 -- --steps 0", "launchers"),
        ("python -m worker_server.sidecar --page x", "WorkerServers"),
        ("python /venv/worker_server/sidecar/__main__.py", "WorkerServers"),
        ("python -m monitor.cli monitor --bind x", "monitor"),
        ("python -m monitor.cli gate --bind x", "gate"),
        ("python /venv/bin/torchft_lighthouse --bind x", "Lighthouse"),
        ("sshd: root", None),
    ],
)
def test_a_process_is_known_by_its_command(command, role):
    assert role_of(command) == role


def test_memory_is_counted_by_role_for_this_run_only(tmp_path):
    wait = "import sys; print('up', flush=True); sys.stdin.read()"
    environ = {**os.environ, "LIGHTKEEPER_RUN_DIR": str(tmp_path / "run")}
    commands = [("torchft_lighthouse", environ), ("torchft_lighthouse", os.environ)]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", wait, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
        )
        for name, env in commands
    ]
    try:
        for process in started:  # an interpreter that has just begun has no memory to speak of
            assert process.stdout.readline() == b"up\n"
        found = memory(tmp_path)
    finally:
        for process in started:
            process.communicate()

    assert set(found) == {"Lighthouse"}
    count, size = found["Lighthouse"]
    assert count == 1
    assert 2**20 < size < 2**28


def test_what_is_said_names_each_role_once(tmp_path, monkeypatch):
    steps = iter([10, 20])

    class Client:
        def snapshot(self):
            step = next(steps)
            return {"ranks": [{"step": step}, {"step": None}]}

    ticks = iter([0.0, 4.0])
    monkeypatch.setattr("trainer.demo.undisturbed.time.monotonic", lambda: next(ticks))
    monkeypatch.setattr("trainer.demo.undisturbed.time.sleep", lambda _s: None)

    assert look(Client(), tmp_path) == Undisturbed(2.5, {})
    calm = Undisturbed(2.5, {"ranks": (2, 2**29), "monitor": (1, 2**27)})
    assert calm.line() == "2.5 steps/s; MiB: 2 ranks x 256, monitor 128"
    assert calm.to_json()["memory"]["ranks"] == {"processes": 2, "bytes": 2**29}
