"""Stacks on the page: culprits first, victims that stand alike together, other texts as is."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

from lightkeeper.monitor.show.web.stacks import RankStacks, by_moment
from lightkeeper.worker_server.rank.last_words import stacks_text


def spied(*main: str, thread: str = "MainThread", pid: int = 7) -> str:
    """As py-spy prints it."""
    frames = "\n".join(f"    {frame}" for frame in main)
    return (
        f"Process {pid}: python train.py\nPython v3.11.7 (/usr/bin/python)\n\n"
        f'Thread {pid} (idle): "{thread}"\n{frames}\n'
        f'Thread {pid + 1} (idle): "beat"\n    wait (threading.py:331)\n'
    )


def own_stacks() -> str:
    """Of this process, as a rank's beat writes them in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(stacks_text).result()


def text_of(markup: str) -> str:
    return " ".join(re.sub("<[^>]*>", " ", markup).split())


STUCK, WAITS = spied("hold (fault.py:5)", "main (train.py:9)"), spied("wait (dist.py:1)")


def test_victims_that_stand_alike_are_one_crowd_behind_the_culprit() -> None:
    taken = [RankStacks(f"rg_0.{n}", spied("wait (dist.py:1)", pid=100 + n)) for n in range(30)]
    taken += [RankStacks("rg_1.1", spied("step (train.py:3)")), RankStacks("rg_1.0", STUCK)]
    shown = text_of(by_moment({"firing": taken}, ["rg_1.0"]))
    assert shown.startswith("firing culprit rg_1.0 in hold (fault.py:5) rg_1.0 MainThread, idle")
    assert "waits 30 ranks: rg_0.0, rg_0.1, rg_0.2 and 27 more in wait (dist.py:1)" in shown
    assert "waits rg_1.1 in step (train.py:3)" in shown
    assert shown.count("wait (dist.py:1)") == 2, "its lines stand there once, and in its heading"


def test_who_gave_none_is_named_with_the_reason() -> None:
    taken = [RankStacks("rg_1.0", STUCK), RankStacks("rg_0.0", None, "late: no answer"),
             RankStacks("rg_0.1", None, "late: no answer")]  # fmt: skip
    shown = text_of(by_moment({"firing": taken}, ["rg_1.0"]))
    assert "No stacks of rg_0.0, rg_0.1: late: no answer" in shown


def test_a_culprit_that_stands_where_it_stood_is_told_so_and_folded() -> None:
    markup = by_moment(
        {"firing": [RankStacks("a.0", STUCK)], "eviction": [RankStacks("a.0", STUCK)]}, ["a.0"]
    )
    assert "eviction: the culprits as before" in text_of(markup)
    assert markup.count(' open=""') == 1
    moved = by_moment(
        {"firing": [RankStacks("a.0", STUCK)], "eviction": [RankStacks("a.0", WAITS)]}, ["a.0"]
    )
    assert moved.count(' open=""') == 2


def test_what_no_known_tool_printed_is_shown_as_it_is() -> None:
    shown = text_of(
        by_moment({"firing": [RankStacks("a.0", "gdb says\n#0 futex_wait ()")]}, ["a.0"])
    )
    assert "as it came gdb says #0 futex_wait ()" in shown


def test_stacks_from_a_dead_ranks_black_box_say_so() -> None:
    text = (
        f"# py-spy for an earlier request, 12.5 s ago: 3.5 s before the rank died\n{STUCK}\n\n"
        f"# the rank's own beat, 14.0 s ago: 5.0 s before the rank died\n{WAITS}\n"
    )
    shown = text_of(by_moment({"firing": [RankStacks("a.0", text)]}, ["a.0"]))
    head = "(py-spy for an earlier request, 12.5 s ago: 3.5 s before the rank died)"
    assert f"a.0 in hold (fault.py:5) {head}" in shown
    assert "wait (dist.py:1)" not in shown, "older ones are in the bundle"


def test_what_a_rank_wrote_of_itself_is_read_alike() -> None:
    text = (
        "# py-spy is missing.\n"
        "# These the rank wrote 0.5 s ago by its beat, once a second while its\n"
        "# interpreter runs: not of this moment, and nothing tells who was idle.\n" + own_stacks()
    )
    shown = text_of(by_moment({"firing": [RankStacks("a.0", text)]}, ["a.0"]))
    assert "(py-spy is missing. These the rank wrote 0.5 s ago" in shown
    assert "MainThread" in shown
    assert "as it came" not in shown


def test_hostile_stacks_stay_text_and_bounded() -> None:
    evil = "</pre><script>alert(1)</script>\x1b[2J\u202e"
    text = spied(*[evil + str(n) for n in range(5000)], thread="MainThread")
    markup = by_moment({evil: [RankStacks(evil, text), RankStacks("b.0", None, evil)]}, [evil])
    assert "<script" not in markup
    assert "\x1b" not in markup
    assert "\u202e" not in markup
    assert len(markup) < 40_000
    many = [RankStacks(f"a.{n}", spied(f"f{n} (x.py:{n})")) for n in range(500)]
    shown = by_moment({"firing": many}, [])
    assert "484 ranks more stand elsewhere" in shown
    assert len(shown) < 40_000
