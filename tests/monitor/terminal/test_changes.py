"""What a watcher in a pipe is told."""

from __future__ import annotations

from monitor.terminal.changes import Fact, changed, facts_of, summary
from tests.monitor.terminal.bodies import asked, group, hung, incident, many, snapshot


def told(before, now) -> list[tuple[str, str]]:
    was = None if before is None else facts_of(asked(before))
    return [(one.about, one.word) for one in changed(was, facts_of(asked(now)))]


def test_at_first_all_but_what_is_well() -> None:
    assert told(None, hung()) == [
        ("training", "no"), ("held_back_by", "named"), ("keeper", "acting"), ("monitor", "trusted"),
        ("quorum", "4"), ("group:rg_0", "waiting"), ("group:rg_1", "evicting"),
        ("incident:not_entered-rg_1.1-7", "firing"),
    ]  # fmt: skip
    assert summary(asked(hung())) == Fact("groups", "2", "1 evicting, 1 waiting")


def test_a_step_is_no_change() -> None:
    later = snapshot()
    for one in (*later["ranks"], *later["groups"]):
        one["step"] += 10
    assert told(snapshot(), later) == []


def test_only_what_changed() -> None:
    assert told(snapshot(), hung()) == [
        ("training", "no"), ("held_back_by", "named"), ("group:rg_0", "waiting"),
        ("group:rg_1", "evicting"), ("incident:not_entered-rg_1.1-7", "firing"),
    ]  # fmt: skip
    assert told(hung(), snapshot(incidents=[incident(state="resolved")])) == [
        ("training", "yes"), ("group:rg_0", "healthy"), ("group:rg_1", "healthy"),
        ("incident:not_entered-rg_1.1-7", "resolved"),
    ]  # fmt: skip


def test_a_group_that_is_gone_is_said_once() -> None:
    one = snapshot(groups=[group("rg_0")])
    assert told(snapshot(), one) == [("group:rg_1", "gone")]


def test_a_thousand_groups_are_no_thousand_lines() -> None:
    dead = many(1250, 8)
    for one in dead["groups"]:
        one["health"] = "dead"
    found = list(changed(facts_of(asked(many(1250, 8))), facts_of(asked(dead))))
    assert len([one for one in found if one.about.startswith("group:")]) == 20
    assert found[-1] == Fact("groups", "more", "and 1,230 more groups changed")
