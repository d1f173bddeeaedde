"""Pickled records of many entries that are written alike: read without making every entry.

Theory of operation. Of 2,000 entries some 50 differ in more than numbers. So the bytes of the
entries are laid beside each other: `_begins` finds where each begins by what it begins with,
`rows.sort` puts into one class what is the same but for sequence ids, times and memo numbers
(`rows.walk` says where those stand). An excerpt of the pickle is then made: all that stands before
the entries, the first of every class, and the end. The excerpt is inspected and run as any pickle
is; what it holds is what the whole would hold, less entries of which a like one is there, and the
numbers of those are taken from their bytes.

Why the excerpt says the same. Entries follow each other without a gap, each ends where the next
begins, and each is a dict that stands by itself (`rows.walk`). Leaving one out changes only the
list, of which it is known that nothing else sees it, and the memo: an entry that gives a memo
number that anything in the excerpt looks up is in the excerpt itself, and no such number is given
twice.

Whatever is not like this is left to the way that reads anything: then `document` is None. All
work is in proportion to the bytes of the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from monitor.records import safe_pickle
from monitor.records.rows import MOST_WORK, PAYLOAD, Classes, EntryRows, sort
from monitor.records.safe_pickle import FlightRecordError

FEWEST: Final = 40
"""Entries; reading fewer takes as long as looking for those that are alike."""
_HEAD: Final = re.compile(rb"\x80[\x02\x03]\}(?:q(.)|r(.{4}))?\(", re.DOTALL)
_LIST: Final = re.compile(
    rb"(X\x07\0\0\0entries)(?:q.|r.{4})?\](?:q(.)|r(.{4}))?(\()(?=\})", re.DOTALL
)
_FIRST: Final = re.compile(
    rb"\}(q.|r.{4})?\((?:X(?P<size>.{4})|h(?P<get>.)|j(?P<long>.{4}))", re.DOTALL
)
_PUT: Final = re.compile(rb"q(?P<put>.)|r(?P<long>.{4})", re.DOTALL)
_DICT: Final = ord("}")
_BLOCK: Final = 1 << 16
"""Bytes looked at together; more than 128 KiB would be mapped anew each time."""
_TEXT: Final = {"put": b"(h", "get": b"(h", "long": b"(j"}


class AlikeRows(EntryRows):
    """Entries of which only one of each class was made."""

    def __init__(self, rows: Sequence[Any], classes: Classes) -> None:
        super().__init__(rows)
        self._classes = classes

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """What the first of its class has, for each."""
        return values[self._classes.which]

    def numbers(self, key: str, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Likewise; taken from the entries' bytes where it differs within a class."""
        every = values[self._classes.which]
        differing = self._classes.numbers.get(key)
        return every if differing is None else np.where(differing.varies, differing.values, every)


def document(data: bytes, fewest: int = FEWEST) -> dict[str, Any] | None:
    """The object in a pickle, its entries as `AlikeRows`; None where they are not written alike."""
    if len(data) > safe_pickle.MAX_INSTRUCTIONS:
        return None
    head, entries = _HEAD.match(data), _LIST.search(data)
    if head is None or entries is None:
        return None
    begins = _begins(data, entries.end())
    if len(begins) < max(fewest, 2) or (np.diff(begins) <= 0).any():
        return None
    try:
        classes = sort(data, begins)
        return None if classes is None else _read(data, begins, classes, _Place(head, entries))
    except FlightRecordError:
        return None


class _Place(NamedTuple):
    """How the record and its entries begin."""

    head: re.Match[bytes]
    entries: re.Match[bytes]

    def memo(self) -> tuple[int, ...]:
        """Memo numbers of the record and of the list."""
        groups = (*self.head.groups(), *self.entries.groups()[1:3])
        return tuple(int.from_bytes(number, "little") for number in groups if number is not None)


def _begins(data: bytes, first: int) -> NDArray[np.int64]:
    """Where each entry begins, as far as one can tell by its first key."""
    mark = _mark(data, first)
    if mark is None:
        return np.zeros(0, np.int64)
    numbered, text = mark
    raw = np.frombuffer(data, np.uint8)
    ends = range(first + _BLOCK, len(raw) + _BLOCK, _BLOCK)
    parts = [_found(raw[end - _BLOCK : end + len(text) - 1], text) + end - _BLOCK for end in ends]
    at = np.concatenate(parts)
    if not numbered:
        begins = at[raw[at - 1] == _DICT] - 1
    else:
        far = (raw[at - 6] == _DICT) & (raw[at - 5] == ord("r"))
        near = (raw[at - 3] == _DICT) & (raw[at - 2] == ord("q"))
        begins = np.where(far, at - 6, at - 3)[far | near]
    return np.concatenate([[first], begins[begins > first]])


def _found(raw: NDArray[np.uint8], text: bytes) -> NDArray[np.int64]:
    """Where a text stands in these bytes."""
    end = max(len(raw) - len(text) + 1, 0)
    matches = raw[:end] == text[0]
    for place in (1, 2):
        matches &= raw[place : end + place] == text[place]
    at = np.flatnonzero(matches)
    for place in range(3, len(text)):
        at = at[raw[at + place] == text[place]]
    return at


def _mark(data: bytes, first: int) -> tuple[bool, bytes] | None:
    """Whether entries are numbered, and what stands between their number and first value."""
    first_key = _FIRST.match(data, first)
    if first_key is None:
        return None
    size = first_key["size"]
    if size is not None:
        text = _PUT.match(data, first_key.end() + int.from_bytes(size, "little"))
        if text is None:
            return None
    else:
        text = first_key
    kind = text.lastgroup or ""
    return first_key[1] is not None, _TEXT[kind] + text[kind]


def _read(
    data: bytes, begins: NDArray[np.int64], classes: Classes, place: _Place
) -> dict[str, Any] | None:
    excerpt = _excerpt(data, begins, classes)
    code = safe_pickle.inspect(excerpt, classes.values)
    wanted = code.gets()
    if any((wanted == number).any() for number in place.memo()) or not _head_is_plain(code, place):
        return None
    if classes.keep_givers(wanted):
        excerpt = _excerpt(data, begins, classes)
        code = safe_pickle.inspect(excerpt, classes.values)
    if not _given_once(code, wanted):
        return None
    value = safe_pickle.run(excerpt)
    if not isinstance(value, dict):
        return None
    rows = value.get("entries")
    if type(rows) is not list or len(rows) != len(classes.firsts):
        return None
    if not all(type(row) is dict for row in rows) or not _as_taken(rows, classes):
        return None
    value["entries"] = AlikeRows(rows, classes)
    return value


def _given_once(code: safe_pickle.Instructions, wanted: NDArray[np.int64]) -> bool:
    """Whether each number that is looked up always means the same value."""
    given = code.puts()
    if given is None:
        return False
    given = np.sort(given)
    again = given[1:][given[1:] == given[:-1]]
    return not np.isin(again, wanted).any()


def _excerpt(data: bytes, begins: NDArray[np.int64], classes: Classes) -> bytes:
    """The pickle with the first entry of each class only."""
    ends = np.append(begins[1:], len(data))
    kept = classes.firsts
    parts = [data[: int(begins[0])]]
    parts += [
        data[at:end] for at, end in zip(begins[kept].tolist(), ends[kept].tolist(), strict=True)
    ]
    return b"".join(parts)


def _head_is_plain(code: safe_pickle.Instructions, place: _Place) -> bool:
    """Whether the entries are the list that they seem to be, and nothing fills it or the record.

    Before them just the record is open, from its beginning on.
    """
    key, opened = place.entries.start(1), place.entries.start(4)
    at = np.searchsorted(code.starts, (place.head.end() - 1, key, opened))
    if (code.starts[at] != (place.head.end() - 1, key, opened)).any():
        return False
    before = code.ops[at[0] : at[2]]
    depth = np.cumsum(
        (before == ord("(")).astype(np.int64) - ((before == ord("u")) | (before == ord("e")))
    )
    return bool((depth >= 1).all() and depth[-1] == 1)


def _as_taken(rows: Sequence[dict[Any, Any]], classes: Classes) -> bool:
    """Whether the numbers stand where they were taken from, and no key stands twice in an entry."""
    work = 0
    for row, shape, count in zip(rows, classes.shapes, classes.counts.tolist(), strict=True):
        keys = list(row)
        if len(keys) != shape.pairs:
            return False
        if any(keys[n.pair] != n.key or type(row[n.key]) is not n.of_type for n in shape.numbers):
            return False
        work += count * _work(row)
    first = rows[0]
    return work <= MOST_WORK and ("record_id" in first or "id" in first)


def _work(row: Mapping[str, Any]) -> int:
    total = 0
    for key in PAYLOAD:
        value = row.get(key)
        if not isinstance(value, list | tuple):
            continue
        total += len(value)
        if key.endswith("_sizes"):
            total += sum(len(size) for size in value if isinstance(size, list | tuple | str))
    return total
