"""A fake /proc and /sys, and a witness led through several looks at it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lightkeeper.worker_server.sidecar.witnesses.witness import MachineWitness
from lightkeeper.worker_server.wire import Testimony, Weight

Files = Mapping[str, str | None]
"""Path below the root -> content; None: the file is removed."""


class Case(NamedTuple):
    """What a witness says after some looks."""

    name: str
    looks: Sequence[Files]
    """Changes before each look."""
    said: Sequence[tuple[Weight, str, str]] = ()
    """Weight, code and a part of the text; empty: nothing bad."""
    pids: tuple[int, ...] = ()
    """Of the first testimony."""
    every_s: float = 5.0
    ranks: tuple[int, ...] = (7,)


def write(root: Path, files: Files) -> None:
    for name, content in files.items():
        path = root / name
        if content is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")


def follow(
    witness: MachineWitness, root: Path, case: Case, start_s: float = 1000.0
) -> list[Testimony]:
    """The testimonies of the last look."""
    rows: Sequence[Testimony] = ()
    for number, files in enumerate(case.looks):
        write(root, files)
        rows = witness.look(case.ranks, start_s + number * case.every_s)
    return list(rows)


def check(rows: Sequence[Testimony], case: Case) -> None:
    got = [(row.weight, row.code, row.text) for row in rows]
    assert [row[:2] for row in got] == [row[:2] for row in case.said], got
    for (_, _, text), (_, _, part) in zip(got, case.said, strict=True):
        assert part in text, got
    if case.pids:
        assert rows[0].pids == case.pids
    assert all(len(row.device) <= 32 and len(row.text) <= 200 for row in rows)
