"""Hosts on one machine, each with a network, a name and pids of its own, and the switch between."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Final, Self

from experiments import harness
from experiments.harness import FleetError
from tests.nursery import Child, Nursery

_SERIAL: Final = count(os.getpid() * 10)
"""Two labs at once have networks of their own, and yet no address in common."""
_LIVE: Final = (
    'hostname "$0" && ip link set lo up && mount --bind "$1" /etc/hosts && echo && exec sleep inf'
)
_NOBODY: Final = "02:00:00:00:00:01"
"""An Ethernet address that no host has."""


class LabError(FleetError):
    """There are no namespaces here, or one could not be changed; the message says why."""


class Lab:
    """One network namespace a host and one with the switch; in `with`: all of it ends at the exit,
    with every process that runs there, and with this process.

    A host's packets are lost as in a real network, without a word: its cable is pulled at the
    switch, or it sends them to an Ethernet address that nobody has.
    """

    def __init__(
        self, folder: Path, hosts: Sequence[str], wrong_names: Collection[str] = (),
        seconds: Mapping[str, str] | None = None, aliases: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Names of `wrong_names` lead to 127.0.0.1 on every host; `seconds`: a name -> the host
        that has a second address by that name; `aliases`: a name -> the host to which it leads.
        """
        self._folder, self.hosts, self._wrong = folder, tuple(hosts), wrong_names
        self._seconds, self._aliases = dict(seconds or {}), dict(aliases or {})
        serial = next(_SERIAL)
        self.net = f"10.{60 + serial % 100}.{serial // 100 % 250}"
        self._keepers: list[subprocess.Popen[str]] = []
        self._forks: list[Child] = []
        self._pids: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        names = self._write_names()
        try:
            switch = self._begin("switch", names)
            self._ip("switch", "link add bridge type bridge", "link set bridge up")
            for number, host in enumerate(self.hosts):
                self._begin(host, names)
                self._ip(
                    host,
                    f"link add eth0 type veth peer name port{number} netns {switch}",
                    f"addr add {self.address(host)}/24 dev eth0",
                    "link set eth0 up",
                )
                self._ip("switch", f"link set {self._port(host)} master bridge up")
            for name, host in self._seconds.items():
                self._ip(host, f"addr add {self.address(name)}/24 dev eth0")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _write_names(self) -> Path:
        """In place: the file is mounted on every host."""
        lines = [f"{self._named(host)} {host}\n" for host in (*self.hosts, *self._seconds)]
        lines += [f"{self.address(host)} {name}\n" for name, host in self._aliases.items()]
        names = self._folder / "hosts"
        names.write_text("".join(["127.0.0.1 localhost\n", *lines]))
        return names

    def lead(self, alias: str, host: str) -> None:
        """From now on this name leads to that host."""
        self._aliases[alias] = host
        self._write_names()

    def _named(self, host: str) -> str:
        return "127.0.0.1" if host in self._wrong else self.address(host)

    def address(self, host: str) -> str:
        """Of a host's only interface, or of a second name."""
        names = (*self.hosts, *self._seconds)
        return f"{self.net}.{names.index(host) + 1}"

    def namespace(self, host: str) -> Path:
        """The file that leads into its network."""
        return Path(f"/proc/{self._pids[host]}/ns/net")

    def spawn(
        self, host: str, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> int:
        """Start a command there, and give its pid as seen from here."""
        with log.open("ab") as out:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "nsenter", "-t", str(self._pids[host]), "-a",
                 "--wdns=/", "nice", "-n", "1", *command],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment,
                start_new_session=True, text=True,
            )  # fmt: skip
        self._keepers.append(process)
        return _child(process, f"{' '.join(command)} did not start on {host} ({log})")

    def fork(
        self, host: str, parent: Nursery, words: Sequence[str], environment: Mapping[str, str],
        log: Path,
    ) -> int:  # fmt: skip
        """As `spawn` of Python with these words."""
        words = ["-m", "experiments.netlab.inside", str(self._pids[host]), *words]
        process = parent.start(words, environment, out=log, err=log)
        self._forks.append(process)
        return _child(process, f"{' '.join(words)} did not start on {host} ({log})")

    # -- what a network does -----------------------------------------------------------------------

    def unplug(self, *hosts: str) -> None:
        """Pull their cables at the switch: they have no carrier."""
        for host in hosts:
            self._ip("switch", f"link set {self._port(host)} down")

    def plug(self, *hosts: str) -> None:
        """Put the cables back."""
        for host in hosts:
            self._ip("switch", f"link set {self._port(host)} up")

    def lose(self, source: str, *targets: str) -> None:
        """What `source` sends to these arrives nowhere."""
        lines = [f"neigh replace {self.address(target)} lladdr {_NOBODY} dev eth0 nud permanent"
                 for target in targets]  # fmt: skip
        self._ip(source, *lines)

    def part(self, host: str, other: str) -> None:
        """Neither hears the other."""
        self.lose(host, other)
        self.lose(other, host)

    def blackhole(self, host: str, other: str) -> None:
        """Neither has a route to the other: their own kernels drop what they send."""
        self._ip(host, f"route add blackhole {self.address(other)}")
        self._ip(other, f"route add blackhole {self.address(host)}")

    def slow(self, *hosts: str, rate: str = "1mbit") -> None:
        """What they send leaves at that rate."""
        for host in hosts:
            self._run(host, f"tc qdisc replace dev eth0 root tbf rate {rate} burst 16kb limit 64kb")

    def shrink(self, host: str, mtu: int = 600) -> None:
        """The switch drops packets to it above so many bytes, and says nothing."""
        for each in self.hosts:  # whole segments of several packets are not measured against it
            self._ip(each, "link set dev eth0 gso_max_segs 1")
        self._ip("switch", f"link set {self._port(host)} mtu {mtu}")

    # -- namespaces --------------------------------------------------------------------------------

    def _port(self, host: str) -> str:
        return f"port{self.hosts.index(host)}"

    def _begin(self, name: str, names: Path) -> int:
        """A new namespace; its first process."""
        keeper = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--uts", "--mount", "--pid",
             "--fork", "--mount-proc", "--kill-child", "sh", "-c", _LIVE, name, str(names)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._keepers.append(keeper)
        assert keeper.stdout is not None
        if not keeper.stdout.readline():
            raise LabError(f"no namespaces here: {keeper.communicate(timeout=20)[1].strip()}")
        self._pids[name] = harness.children(keeper.pid)[0]
        return self._pids[name]

    def _ip(self, host: str, *lines: str) -> None:
        for line in lines:
            self._run(host, f"ip {line}")

    def _run(self, host: str, command: str) -> None:
        words = ["nsenter", "-t", str(self._pids[host]), "-n", *command.split()]
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
        if done.returncode:
            raise LabError(f"on {host}: {command}: {done.stderr.strip()}")

    def _end(self) -> None:
        for keeper in self._keepers:
            keeper.kill()  # and with a host's all that runs there
        for keeper in self._keepers:
            keeper.communicate(timeout=20)
        for process in self._forks:
            process.wait(20)


def _child(process: subprocess.Popen[str] | Child, or_else: str) -> int:
    for _ in range(500):
        if pids := harness.children(process.pid):
            return pids[0]
        if process.poll() is not None:
            break
        time.sleep(0.01)
    raise LabError(or_else)


def why_not() -> str | None:
    """Why there can be no lab here; None where there can."""
    try:
        with Lab(Path("/tmp/netlab-probe"), ["probe"]) as lab:
            lab.slow("probe")
    except (LabError, OSError, IndexError) as exc:
        return str(exc)
    return None
