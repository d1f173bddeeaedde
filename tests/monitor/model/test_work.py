"""What holds of what people did about incidents."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lightkeeper.monitor.model.plain import from_plain, to_plain
from lightkeeper.monitor.model.work import IncidentWork, Work, WorkAction, WorkRow
from tests.changed import replace
from tests.monitor.samples import incident

HUNG = replace(incident(), hosts=("rack7-1", "rack7-2"), groups=("rg_1",), run="r1")


def row(action: str, at_s: float = 1.0, author: str = "ann", **more) -> WorkRow:
    more.setdefault("about", "inc-1")
    return WorkRow(WorkAction(action), author, at_s, **more)


def silence(until_s: float = 100.0, name: str = "silence-1", **match: str) -> WorkRow:
    return row("silence", about="", match=match, until_s=until_s, id=name, text="why")


def test_the_last_of_acknowledge_and_resolve_holds_and_each_says_by_whom() -> None:
    assert IncidentWork().says == ""
    rows = [row("ack", text="looking"), row("assign", to="bob"), row("comment", text="x")]
    work = IncidentWork(rows)
    assert (work.says, work.resolved) == ("acknowledged by ann: looking; assigned to bob", None)
    closed = IncidentWork([*rows, row("resolve", author="eve", text="by design")])
    assert (closed.acknowledged, closed.resolved.author) == (None, "eve")
    assert closed.says == "resolved by eve: by design; assigned to bob"
    again = IncidentWork([*closed.rows, row("ack", author="bob")])
    assert (again.resolved, again.acknowledged.author) == (None, "bob")


def test_who_names_others_by_now_is_neither_acknowledged_nor_resolved() -> None:
    then = HUNG.fingerprint
    for action in ("ack", "resolve"):
        work = Work((row(action, fingerprint=then), row("assign", to="bob", fingerprint=then)))
        assert work.of(HUNG).says.startswith(action[:3])
        assert work.of(replace(HUNG, fingerprint="other")).says == "assigned to bob"


@pytest.mark.parametrize(
    ("match", "mutes"),
    [
        ({"kind": "not_entered"}, True), ({"kind": "dead"}, False), ({"group": "rg_1"}, True),
        ({"host": "rack7-*"}, True), ({"host": "rack7-1"}, False), ({"rank": "rg_1.0"}, True),
        ({"run": "r1", "kind": "not_entered"}, True), ({"run": "r2", "kind": "not_entered"}, False),
        ({"kind": "not_*", "group": "rg_?"}, True), ({}, False),
    ],
    ids=str,
)  # fmt: skip
def test_a_silence_must_match_all_that_an_incident_accuses(match: Mapping, mutes: bool) -> None:
    assert silence(**match).matches(HUNG) is mutes


def test_an_incident_that_accuses_nobody_is_muted_by_its_kind_alone() -> None:
    nobody = replace(HUNG, culprits=(), groups=(), hosts=())
    assert not silence(host="*").matches(nobody)
    assert silence(kind="not_entered").matches(nobody)


def test_a_name_that_is_a_pattern_matches_itself() -> None:
    assert silence(group="a[1]").matches(replace(HUNG, groups=("a[1]",)))


def test_a_silence_holds_until_its_time_or_its_end() -> None:
    first, second = silence(100.0, kind="dead"), silence(50.0, "silence-2", host="*")
    work = Work((first, second))
    assert [len(work.silences(now_s)) for now_s in (49.0, 50.0, 100.0)] == [2, 1, 0]
    assert work.silence_of(HUNG, 49.0) is second
    ended = Work((*work.rows, row("unsilence", about="silence-2")))
    assert ended.silences(10.0) == (first,)
    assert ended.silence_of(HUNG, 49.0) is None


def test_precision_counts_each_incident_by_its_last_label() -> None:
    labels = [("a", True), ("b", True), ("c", False), ("a", False)]
    rows = [row("label", about=name, right=right, kind="dead") for name, right in labels]
    work = Work((*rows, row("label", about="d", right=True, kind="hang"), row("comment")))
    assert {kind: (t[True], t[False]) for kind, t in work.labels.items()} == {
        "dead": (1, 2), "hang": (1, 0),
    }  # fmt: skip
    assert IncidentWork(work.about("a")).right is False
    assert IncidentWork(work.about("none")).right is None


def test_a_row_is_read_as_it_was_written() -> None:
    for given in (
        silence(kind="dead"),
        row("label", right=False, text="no"),
        row("assign", to="b"),
    ):
        assert from_plain(WorkRow, to_plain(given)) == given
