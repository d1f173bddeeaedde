"""`python -m tests.screens.cast VENV [OUT]`: records a new user's first minutes, as they are.

VENV has torch and TorchFT and no lightkeeper. A shell in a pseudo-terminal gets the commands that
a person would type, in a folder with a script that knows nothing of us (`casts/`); what it answers
is written with its time, as asciinema plays it (`asciinema play docs/casts/ddp.cast`). What it
took is measured from the end of `pip install` to the moment at which the monitor shows the ranks.
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import json
import os
import pty
import shutil
import signal
import struct
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import requests

from lightkeeper.worker_server.home import DEFAULT_MONITOR, not_ours
from tests.lightkeeper.installed import built

SCRIPTS: Final = Path(__file__).parent / "casts"
OUT: Final = Path(__file__).parents[2] / "docs" / "casts"
_PROMPT: Final = "$ "
_SIZE: Final = (104, 32)
_KEY_S: Final = 0.02


class Terminal:
    """A shell, and all that it wrote, with the second at which it did."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        (folder / ".inputrc").write_text("set enable-bracketed-paste off\n")
        self._began_s = time.monotonic()
        self.events: list[tuple[float, str]] = []
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.chdir(folder)
            own = {"PS1": _PROMPT, "TERM": "xterm-256color", "INPUTRC": str(folder / ".inputrc")}
            os.execve("/bin/bash", ["bash", "--norc", "--noprofile"], {**environ, **own})
        width, height = _SIZE
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while True:
            try:
                text = decoder.decode(os.read(self._fd, 65536))
            except OSError:
                return
            self.events.append((time.monotonic() - self._began_s, text))

    def run(self, line: str, within_s: float = 120.0) -> None:
        """Type a line, and wait until the shell wants another."""
        self._ready(within_s)
        for letter in line:
            os.write(self._fd, letter.encode())
            time.sleep(_KEY_S)
        seen = len(self.events)
        os.write(self._fd, b"\n")
        wait(lambda: len(self.events) > seen, within_s)
        self._ready(within_s)
        time.sleep(1.0)

    def _ready(self, within_s: float) -> None:
        wait(lambda: "".join(text for _, text in self.events[-3:]).endswith(_PROMPT), within_s)

    def close(self) -> None:
        """End the shell and its jobs."""
        os.write(self._fd, b"kill $(jobs -p); wait 2> /dev/null; exit\n")
        with suppress(TimeoutError):
            wait(lambda: os.waitpid(self._pid, os.WNOHANG)[0] != 0, 60)
            return
        os.killpg(self._pid, signal.SIGKILL)

    def save(self, path: Path, title: str, until_s: float) -> None:
        """As a file that `asciinema play` plays."""
        width, height = _SIZE
        head = {"version": 2, "width": width, "height": height, "title": title,
                "timestamp": int(time.time())}  # fmt: skip
        lines = [json.dumps(head)]
        lines += [json.dumps([round(at, 3), "o", text]) for at, text in self.events if at < until_s]
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n")

    def now_s(self) -> float:
        """On the recording's clock."""
        return time.monotonic() - self._began_s


def wait(condition: Callable[[], bool], within_s: float) -> float:
    """How long it took.

    Raises:
        TimeoutError: longer.
    """
    began_s = time.monotonic()
    while not condition():
        if time.monotonic() - began_s > within_s:
            raise TimeoutError(f"not within {within_s:g} s")
        time.sleep(0.05)
    return time.monotonic() - began_s


def _monitor(path: str) -> Any:
    try:
        return requests.get(DEFAULT_MONITOR + path, timeout=5).json()
    except (requests.RequestException, ValueError):
        return {}


def shown(ranks: int, healths: Collection[str]) -> bool:
    """Whether the monitor shows so many ranks, each in one of these states."""
    rows = _monitor("/v1/ranks").get("ranks", [])
    return sum(row["health"] in healths for row in rows) == ranks


def accused() -> bool:
    """Whether an incident fires, or an eviction is over."""
    incidents = _monitor("/v1/incidents").get("incidents", [])
    return any(incident["state"] in ("firing", "resolved") for incident in incidents)


STORIES: Final[dict[str, tuple[str, Sequence[str], str]]] = {
    "ddp": (
        "Plain DDP, two ranks: three commands, no variable",
        [
            "lightkeeper monitor 2> monitor.log &",
            "lightkeeper run -- torchrun --nproc-per-node 2 {script} &> train.log &",
        ],
        "train.py",
    ),
    "torchft": (
        "TorchFT, two replica groups: five commands, and TorchFT's own variable",
        [
            "export TORCHFT_LIGHTHOUSE=http://127.0.0.1:29510",
            "torchft_lighthouse --min_replicas 1 &> lighthouse.log &",
            "lightkeeper monitor 2> monitor.log &",
            "REPLICA_GROUP_ID=0 lightkeeper run -- torchrun --standalone {script} &> rg_0.log &",
            "REPLICA_GROUP_ID=1 lightkeeper run -- torchrun --standalone {script} &> rg_1.log &",
        ],
        "train_ft.py",
    ),
}


def record(
    story: str, venv: Path, wheel: Path, out: Path, scripts: Path, script: str | None
) -> tuple[float, float]:
    """Seconds from the end of `pip install` to ranks that are shown, and that are healthy.

    Args:
        story: which.
        venv: with torch and TorchFT.
        wheel: ours.
        out: where the recording goes.
        scripts: the folder in which a person works.
        script: what is trained there, with its arguments; None: the story's own.
    """
    title, commands, own_script = STORIES[story]
    script = script or own_script
    breaks = f"kill -STOP $(pgrep -nf 'python.* {script.split()[0]}')"
    with tempfile.TemporaryDirectory(prefix="cast-") as name:
        folder = Path(name, "job")
        shutil.copytree(scripts, folder)
        shutil.copy(wheel, folder)
        own = Path(name, "venv")
        shutil.copytree(venv, own, symlinks=True)
        environ = {
            "PATH": f"{own}/bin:/usr/bin:/bin", "HOME": name, "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        for program in (own / "bin").iterdir():  # their first line names the other folder
            if program.is_file() and not program.is_symlink():
                text = program.read_bytes()
                if text.startswith(b"#!"):
                    program.write_bytes(text.replace(str(venv).encode(), str(own).encode()))
        terminal = Terminal(folder, environ)
        try:
            terminal.run("ls")
            terminal.run(f"pip install -qq './{wheel.name}[monitor,stacks]'", 300)
            began_s = terminal.now_s()
            for command in commands:
                terminal.run(command.format(script=script))
            wait(lambda: shown(2, ("healthy", "starting", "waiting")), 120)
            seen_s = terminal.now_s() - began_s
            wait(lambda: shown(2, ("healthy",)), 300)
            took_s = terminal.now_s() - began_s
            terminal.run("lightkeeper status")
            time.sleep(3)
            terminal.run(f"{breaks}   # a rank stops")
            wait(accused, 120)
            terminal.run("lightkeeper status")
            time.sleep(1)
            ends_s = terminal.now_s()
        finally:
            terminal.close()
        terminal.save(out / f"{story}.cast", title, ends_s)
    return seen_s, took_s


def main() -> int:
    """Record both; 2 where the default port is taken."""
    parser = argparse.ArgumentParser(prog="python -m tests.screens.cast", description=__doc__)
    parser.add_argument("venv", type=Path)
    parser.add_argument("out", nargs="?", type=Path, default=OUT)
    parser.add_argument("--only", choices=tuple(STORIES), action="append")
    parser.add_argument("--scripts", type=Path, default=SCRIPTS, help="work in a copy of this")
    parser.add_argument("--script", help="train this there, with arguments (of --only)")
    args = parser.parse_args()
    if not_ours() != "nobody listens there":
        sys.stderr.write("somebody listens on the default port: end that monitor first\n")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        wheel = built("wheel", Path(folder))
        for story in args.only or STORIES:
            seen_s, took_s = record(
                story, args.venv.absolute(), wheel, args.out, args.scripts, args.script
            )
            sys.stdout.write(
                f"{story}: seen {seen_s:.1f} s after the install, healthy {took_s:.1f} s\n"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
