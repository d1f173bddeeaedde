"""`python -m tests.killing`: every process of a fleet is killed in turn; evidence/kill-each.md."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests import harness
from tests.harness import FleetError, say
from tests.killing import page
from tests.killing.fleet import KillFleet
from tests.killing.runner import Bench, Row


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = harness.options("tests.killing", __doc__, "kill-each")
    add = top.add_argument
    add("--gate", choices=("yes", "no", "both"), default="both", help="one in front (both)")
    add("--rounds", type=int, default=3, metavar="N", help="kills of each process (default 3)")
    add("--only", metavar="WORD", help="only processes whose name holds this word")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 when every kill was made and the fleet came back whole, 1 when not."""
    args = parser().parse_args(arguments)
    made = True
    if not args.page_only:
        harness.begin("tests.killing")
        base = args.folder or Path(tempfile.mkdtemp(prefix="lightkeeper-killing-"))
        for gate in {"yes": [True], "no": [False], "both": [True, False]}[args.gate]:
            made &= Series(gate, base, args).run()
    page.write(args.page, args.out)
    return 0 if made else 1


class Series:
    """All kills with a gate, or all without."""

    def __init__(self, gate: bool, base: Path, args: argparse.Namespace) -> None:
        self._gate = gate
        self._base = base
        self._args = args
        self._fleets = 0
        self._bench: Bench | None = None

    def run(self) -> bool:
        """Whether every kill was made and mended by itself."""
        done = {line["key"] for line in harness.read(self._args.out)}
        made = True
        try:
            for number in range(1, self._args.rounds + 1):
                for name in self._names():
                    key = f"{'gate' if self._gate else 'no gate'}/{number}/{name}"
                    if key not in done:
                        made &= self._one(key, name)
        finally:
            self._close()
        return made

    def _names(self) -> list[str]:
        """In the order of `Roles`."""
        names = self._ready().roles.expected
        return [name for name in names if (self._args.only or "") in name]

    def _one(self, key: str, name: str) -> bool:
        say(key)
        try:
            bench = self._ready()
            row: Row = {"key": key, "gate": self._gate, **bench.kill(name)}
        except FleetError as exc:
            say(f"   {exc}; another fleet is started")
            self._close()
            return False
        harness.append(self._args.out, row)
        say(
            f"   whole after {row['whole_s']} s, longest pause {row['pause_s']} s, "
            f"back after {row['back_s']} s, steps lost {row['steps_lost']}"
        )
        for what in ("problem", "accused_wrongly", "evicted"):
            if row[what]:
                say(f"   {what}: {row[what]}")
        if row["problem"]:
            self._close()
        return not row["problem"]

    def _ready(self) -> Bench:
        """A whole fleet.

        Raises:
            FleetError: it does not become whole.
        """
        if self._bench is None:
            self._fleets += 1
            folder = self._base / f"{'gate' if self._gate else 'plain'}-{self._fleets}"
            say(f"   a fleet starts in {folder}")
            fleet = KillFleet.made(folder, gate=self._gate)
            self._bench = Bench(fleet)
            fleet.start()
            self._bench.until_whole()
            others = self._bench.roles.others()
            if others:
                raise FleetError(f"processes that nobody would kill: {others}")
        return self._bench

    def _close(self) -> None:
        if self._bench is not None:
            self._bench.close()
            self._bench = None


if __name__ == "__main__":
    sys.exit(main())
