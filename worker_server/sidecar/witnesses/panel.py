"""`-m lightkeeper.worker_server.sidecar.witnesses.panel RUN_DIR`: hears all witnesses of a host,
each in a thread of its own, and writes what they say to one file.

A sidecar starts it, see `machine`. It ends when its standard input does, that is with its sidecar,
whatever its threads wait for.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec import convert, structs, to_builtins

from lightkeeper.worker_server import run_dir, wire
from lightkeeper.worker_server.sidecar.machine import FILE, ROWS_MOST, weight_and_age
from lightkeeper.worker_server.sidecar.witnesses.cgroup import Cgroup, Pressure
from lightkeeper.worker_server.sidecar.witnesses.cloud import CloudNotices
from lightkeeper.worker_server.sidecar.witnesses.disks import Disks
from lightkeeper.worker_server.sidecar.witnesses.gpus import Amd, Nvidia
from lightkeeper.worker_server.sidecar.witnesses.hardware import Counters, NetworkWitness
from lightkeeper.worker_server.sidecar.witnesses.kernel_log import KernelLog
from lightkeeper.worker_server.sidecar.witnesses.ras import Ras
from lightkeeper.worker_server.sidecar.witnesses.witness import CannotReadError, MachineWitness

_WRITE_S: Final = 1.0
_LATE_S: Final = 15.0
_KEPT_S: Final = 3600.0
"""What a witness said that can no longer read is kept for so long."""
_CHILD_KEPT_S: Final = 120.0


def witnesses() -> tuple[MachineWitness, ...]:
    """New ones; none has looked yet."""
    return (
        KernelLog(), *map(Counters, ("EDAC", "CPU", "kernel", "PCIe")), Cgroup(), Pressure(),
        Disks(), NetworkWitness(), Nvidia(), Amd(), Ras(), CloudNotices(),
    )  # fmt: skip


class Seat:
    """One witness in its thread, and what it said last."""

    def __init__(self, witness: MachineWitness, ranks: Callable[[], Collection[int]]) -> None:
        self.name, self._witness, self._ranks = witness.name, witness, ranks
        self._asked_s: float | None = time.monotonic()
        """Since when it is waited for; None: it has answered."""
        self._said = list[wire.Testimony](), 0.0, "it has not looked yet"
        """What it said, and when; why it cannot read since then."""
        threading.Thread(target=self._run, name=witness.name, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._asked_s = now_s = time.monotonic()
            rows, said_s, why = *self._said[:2], ""
            try:
                said = islice(self._witness.look(self._ranks(), now_s), ROWS_MOST)
                rows, said_s = convert(to_builtins([*said]), list[wire.Testimony]), now_s
            except CannotReadError as exc:
                why = str(exc)
            except Exception as exc:  # noqa: BLE001  any problem is this witness's alone
                why = f"it failed: {exc!r}"
            self._said, self._asked_s = (rows, said_s, why[:200]), None
            time.sleep(self._witness.every_s)

    def hear(self, now_s: float) -> tuple[str, list[wire.Testimony]]:
        """Why it cannot read, and what it says; at once."""
        asked_s, (rows, said_s, why) = self._asked_s, self._said
        if asked_s is not None and now_s - asked_s > _LATE_S:
            why = f"no answer for {now_s - asked_s:.0f} s"
        rows = [row.later(max(0.0, now_s - said_s)) for row in rows]
        return why, [row for row in rows if not why or row.age_s < _KEPT_S]


class Families:
    """Ranks of a run directory and what they started; a killed child stays for two minutes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ranks: set[int] = set()
        self._seen: dict[int, tuple[int, float]] = {}
        """Child -> its rank, and when it was last seen."""

    def look(self, now_s: float) -> None:
        """Find the ranks and their children."""
        self.ranks = run_dir.processes(self._folder, ("pid",))
        self._seen = {pid: at for pid, at in self._seen.items() if now_s - at[1] < _CHILD_KEPT_S}
        for rank in self.ranks:
            self._seen |= dict.fromkeys(run_dir.family(rank)[1:], (rank, now_s))

    def of(self, row: wire.Testimony) -> wire.Testimony:
        """The testimony; of a rank's child, it concerns the rank, too."""
        ranks = {self._seen[pid][0] for pid in row.pids if pid in self._seen} - {*row.pids}
        return structs.replace(row, pids=(*row.pids, *sorted(ranks))[:8])


def write(path: Path, reasons: dict[str, str], rows: Sequence[wire.Testimony]) -> None:
    """Write the file, with as many rows as it may have.

    Raises:
        OSError: it cannot be written.
    """
    rows = sorted(rows, key=weight_and_age)[:ROWS_MOST]
    report = wire.MachineReport(wire.Host(""), 0.0, reasons, tuple(rows))
    run_dir.write_json(path, {"written_s": time.monotonic(), "report": wire.to_json(report)})


def _sit(folder: Path) -> None:
    families = Families(folder)
    seats = [Seat(witness, lambda: families.ranks) for witness in witnesses()]
    while True:
        now_s = time.monotonic()
        families.look(now_s)
        heard = {seat.name: seat.hear(now_s) for seat in seats}
        with suppress(OSError):  # no room: the sidecars see that the file is old
            rows = [families.of(row) for _, said in heard.values() for row in said]
            write(folder / FILE, {name: why for name, (why, _) in heard.items()}, rows)
        time.sleep(_WRITE_S)


def _end_with_the_sidecar(file: Path) -> None:
    with suppress(OSError):
        while os.read(0, 1):
            pass
        file.unlink(missing_ok=True)
    os._exit(0)


if __name__ == "__main__":
    run_folder = Path(sys.argv[1])
    threading.Thread(target=_end_with_the_sidecar, args=(run_folder / FILE,), daemon=True).start()
    with suppress(OSError):
        os.nice(10)
    _sit(run_folder)
