"""Files that may be flight records: where they are, and whose."""

from __future__ import annotations

import os
import re
import stat
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from monitor.flight_recorder.job import Problem
from monitor.flight_recorder.record import FlightRecordError
from monitor.names import RankName, split_rank_name

MAX_FILE: Final = 128 << 20
MAX_ZIP: Final = 16 << 30
"""Of all its members unpacked: a small zip may be made to unpack for days."""
_ENDS: Final = (".json", ".pickle", ".pkl")
_RANK: Final = re.compile(
    r"(?<!local)(?<!local[_-])rank[_=-]?(?P<named>\d{1,9})(?!\d)|(?<!\d)(?P<last>\d{1,9})$",
    re.IGNORECASE,
)
_OTHER_END: Final = re.compile(r"\.[a-z]\w*$", re.IGNORECASE)
_QUORUM: Final = re.compile(r"_quorum_(\d{1,18})$")
"""TorchFT's folder of one quorum: PREFIX_quorum_ID/RANK (torchft/manager.py, _update_fr_path)."""


@dataclass(frozen=True, slots=True)
class Source:
    """One file, or one member of a zip."""

    path: str
    """For people: `bundle.zip/rank_3` for a member."""
    file: str
    member: str | None = None
    size: int = 0
    rank: int | None = None
    """Told by the name; an answer of a WorkerServer says itself whose it is."""
    quorum: int | None = None
    named: bool = False
    """Whether the user named this very file: it has to be a record then."""
    whose: RankName | None = None
    """The rank that an evidence bundle's manifest says."""
    taken_ns: int | None = None
    """When it was answered, as the manifest says; Unix time."""

    @property
    def prefix(self) -> str:
        """The path up to the rank: equal for the records of one job's ranks."""
        folder, _, name = self.path.rpartition("/")
        found = _rank_in(_stem(name))
        return f"{folder}/{_stem(name) if found is None else name[: found.start()]}"

    @property
    def rank_name(self) -> RankName | None:
        """The rank's name that ends the file's: `rg_1.0` for `bundle.zip/rg_1.0.json`."""
        if self.whose is not None:
            return _whole_name(self.whose)
        return _whole_name(_stem(self.path.rpartition("/")[2]))

    def read(self) -> bytes:
        """The whole file.

        Raises:
            FlightRecordError: unreadable or too large.
        """
        try:
            if self.member is None:
                data = _whole(self.file)
            else:
                with zipfile.ZipFile(self.file) as bundle, bundle.open(self.member) as file:
                    data = file.read(MAX_FILE + 1)
        except OSError as exc:
            raise FlightRecordError(exc.strerror or str(exc)) from exc
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as exc:
            raise FlightRecordError(f"broken zip: {exc}") from exc
        if len(data) > MAX_FILE:
            raise FlightRecordError(f"more than {MAX_FILE} bytes")
        return data


def _whole(path: str) -> bytes:
    """All of a file, or more than is allowed.

    Not asked for `MAX_FILE` at once: room would be mapped for that, and mapped anew for each file.
    """
    with open(path, "rb") as file:
        size = min(os.fstat(file.fileno()).st_size, MAX_FILE)
        data = file.read(size + 1)
        return data + file.read(MAX_FILE + 1 - len(data)) if len(data) > size else data


def find(paths: Sequence[Path]) -> tuple[list[Source], list[Problem]]:
    """All files under `paths` that may be records, sorted, each once; and what cannot be looked at.

    In a folder or a zip those count whose name, without .json or .pickle, tells a rank, and all
    that end in .json; a file that is named counts always.
    """
    sources: dict[str, Source] = {}
    problems: list[Problem] = []
    for path in paths:
        for file, named in _files(path, problems):
            try:
                for source in _in_file(file, named=named):
                    key = os.path.realpath(source.file) + "\0" + (source.member or "")
                    sources.setdefault(key, source)
            except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError) as exc:
                problems.append(_problem(file, exc))
    return sorted(sources.values(), key=lambda source: source.path), problems


def _files(path: Path, problems: list[Problem]) -> Iterator[tuple[Path, bool]]:
    """Files under a path, and whether the user named them."""
    if not path.is_dir():
        yield path, True
        return
    unread: list[OSError] = []
    for folder, folders, names in os.walk(path, onerror=unread.append):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if _may_be(name) or name.endswith(".zip"):
                yield Path(folder, name), False
    problems += [_problem(Path(exc.filename or path), exc) for exc in unread]


def _problem(path: Path, exc: Exception) -> Problem:
    reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
    return Problem(str(path), reason)


def _in_file(path: Path, *, named: bool) -> Iterator[Source]:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("neither a file nor a folder")
    if path.suffix == ".zip" or (named and zipfile.is_zipfile(path)):
        yield from _zipped(path)
    else:
        yield _source(str(path), str(path), found.st_size, named=named)


def _zipped(path: Path) -> Iterator[Source]:
    with zipfile.ZipFile(path) as bundle:
        members = [
            info
            for info in bundle.infolist()
            if not info.is_dir() and _may_be(info.filename.rpartition("/")[2])
        ]
    if sum(info.file_size for info in members) > MAX_ZIP:
        raise ValueError(f"a zip of more than {MAX_ZIP >> 30} GiB")
    for info in members:
        yield _source(f"{path}/{info.filename}", str(path), info.file_size, member=info.filename)


def _source(
    name: str, file: str, size: int, *, member: str | None = None, named: bool = False
) -> Source:
    folder, _, last = name.rpartition("/")
    quorum = _QUORUM.search(folder)
    return Source(
        path=name,
        file=file,
        member=member,
        size=size,
        rank=rank_of(last),
        quorum=None if quorum is None else int(quorum[1]),
        named=named,
    )


def rank_of(name: str) -> int | None:
    """The rank that a file's name tells: 3 for `_dump_3`, `dump_rank3_node1.json`, `rank_3.pkl`."""
    found = _rank_in(_stem(name))
    return None if found is None else int(found["named"] or found["last"])


def _rank_in(stem: str) -> re.Match[str] | None:
    """Where a name says `rank3`, else the number that ends it."""
    found = list(_RANK.finditer(stem))
    named = next((one for one in found if one["named"]), None)
    if named is not None and not _OTHER_END.search(stem):
        return named
    return next((one for one in found if one["last"]), None)


def _whole_name(name: str) -> RankName | None:
    try:
        split_rank_name(name)
    except ValueError:
        return None
    return RankName(name)


def _stem(name: str) -> str:
    end = next((end for end in _ENDS if name.lower().endswith(end)), "")
    return name[: len(name) - len(end)]


def _may_be(name: str) -> bool:
    if name.startswith("."):
        return False
    return name.lower().endswith(".json") or rank_of(name) is not None
