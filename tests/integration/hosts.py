"""Hosts on one machine: each has a network, a name and pids of its own, and reaches the others."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import pytest

_SERIAL: Final = count(os.getpid() * 10)
"""Links outlive their processes for a moment."""
_LIVE: Final = (
    'hostname "$0" && ip link set lo up && mount --bind "$1" /etc/hosts && echo && exec sleep inf'
)


@dataclass(frozen=True)
class Host:
    address: str
    before: tuple[str, ...] = ()
    """Words that run a command there."""


@contextmanager
def three_hosts(folder: Path) -> Iterator[tuple[Host, Host, Host]]:
    """This machine, and two others. Skips with the reason where that is not allowed.

    The first of the others is the switch as well: with its processes all links go.
    """
    serial = next(_SERIAL)
    net, link = f"10.{200 + serial % 50}.{serial // 50 % 250}", f"lk{serial}"
    here, *others = (f"{net}.{number}" for number in (254, 1, 2))
    names = folder / "hosts"
    names.write_text(f"127.0.0.1 localhost\n{others[0]} host1\n{others[1]} host2\n")
    keepers = list[subprocess.Popen[str]]()
    try:
        first, second = (_pid(keepers, name, names) for name in ("host1", "host2"))
        for pid, words in (
            (None, f"link add {link} type veth peer name here netns {first}"),
            (None, f"addr add {here}/24 dev {link}"),
            (None, f"link set {link} up"),
            (second, f"link add eth0 type veth peer name there netns {first}"),
            (second, f"addr add {others[1]}/24 dev eth0"),
            (second, "link set eth0 up"),
            (first, "link add eth0 type bridge"),
            (first, f"addr add {others[0]}/24 dev eth0"),
            (first, "link set eth0 up"),
            (first, "link set here master eth0 up"),
            (first, "link set there master eth0 up"),
        ):
            _done(*(() if pid is None else ("nsenter", "-t", str(pid), "-n")), "ip", *words.split())
        yield (
            Host(here),
            *(
                Host(address, ("nsenter", "-t", str(pid), "-a"))
                for address, pid in zip(others, (first, second), strict=True)
            ),
        )
    finally:
        for keeper in keepers:
            keeper.kill()  # and with it all that runs there
            keeper.communicate(timeout=20)


def _pid(keepers: list[subprocess.Popen[str]], name: str, names: Path) -> int:
    """The first process of a new host."""
    keeper = subprocess.Popen(
        ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child",
         "sh", "-c", _LIVE, name, str(names)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    keepers.append(keeper)
    assert keeper.stdout is not None
    if not keeper.stdout.readline():
        pytest.skip(f"no namespaces here: {keeper.communicate(timeout=20)[1].strip()}")
    return int(Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children").read_text())


def _done(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
    if done.returncode:
        pytest.skip(f"no network namespaces here: {' '.join(words)}: {done.stderr.strip()}")
