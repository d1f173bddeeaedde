"""Journal files from disk: in the order in which they were written, damage and ends as data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

from monitor.journal.entries import Head, JournalError, Tick, head_from_json, tick_from_json
from monitor.journal.lines import End, LineError, Unpacker
from monitor.journal.shelf import files
from monitor.journal.sightings import SnapshotReader

_PIECE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Opened:
    """A file with a usable head."""

    path: Path
    head: Head
    """`found` leaves its memory out: that of 1,000 ranks takes 100 MB, `events` reads it again."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The end of a file."""

    path: Path
    how: End
    damage: str | None = None
    """What is wrong, and after which tick; the rest of the file is not read."""


Event = Opened | Tick | Closed


def found(paths: Sequence[Path]) -> tuple[tuple[Opened, ...], tuple[str, ...]]:
    """Files of these paths (folders: all in them) in the order in which they were written, and
    what is to be said of those that hold nothing yet.

    Raises:
        JournalError: a path holds no journal, or one that cannot be used.
    """
    opened: list[Opened] = []
    notes: list[str] = []
    for path in dict.fromkeys(_named(paths)):
        head = read_head(path)
        if head is None:
            notes.append(f"{path}: ends within its head: nothing to replay")
        else:
            opened.append(Opened(path, replace(head, memory=None)))
    if not opened:
        raise JournalError(notes[0] if notes else "no journal given")
    starts: dict[str, float] = {}
    for one in opened:
        run = one.head.run
        starts[run] = min(starts.get(run, one.head.began_s), one.head.began_s)
    opened.sort(key=lambda one: (starts[one.head.run], one.head.run, one.head.number))
    return tuple(opened), tuple(notes)


def _named(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
        elif inside := files(path):
            yield from inside
        else:
            raise JournalError(f"{path}: no journal in this folder (journal-*.gz)")


def read_head(path: Path) -> Head | None:
    """The head of a file; None where the file ends within it.

    Raises:
        JournalError: it cannot be read, or is no journal.
    """
    try:
        with path.open("rb") as file:
            return _head(file)
    except OSError as exc:
        raise JournalError(f"{path}: {exc.strerror}") from exc
    except (LineError, JournalError) as exc:
        raise JournalError(f"{path}: {exc}") from exc


def _head(file: BinaryIO) -> Head | None:
    unpacker = Unpacker()
    while data := file.read(_PIECE):
        for line in unpacker.feed(data):
            return head_from_json(line)
    return None


def events(opened: Sequence[Opened]) -> Iterator[Event]:
    """All that the files hold: each is opened, its ticks follow, it is closed.

    Raises:
        JournalError: a file cannot be read any more.
    """
    for one in opened:
        yield from _inside(one)


def _inside(opened: Opened) -> Iterator[Event]:
    path, last = opened.path, opened.head.after_tick
    unpacker, reader, config = Unpacker(), SnapshotReader(), opened.head.config
    try:
        with path.open("rb") as file:
            begun = False
            while data := file.read(_PIECE):
                for line in unpacker.feed(data):
                    if begun:
                        tick = tick_from_json(line, reader, config)
                        last = tick.snapshot.tick
                        yield tick
                    else:
                        begun = True
                        yield Opened(path, head_from_json(line))
    except OSError as exc:
        raise JournalError(f"{path}: {exc.strerror}") from exc
    except (LineError, JournalError) as exc:
        where = "at its first tick" if last is None else f"after tick {last}"
        yield Closed(path, End.CUT, f"{exc} ({where})")
    else:
        yield Closed(path, unpacker.end())
