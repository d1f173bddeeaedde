"""What is made of a view is made once, however many ask for it, and nobody waits for long."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from lightkeeper.monitor.model.work import Work, WorkAction, WorkRow
from lightkeeper.monitor.show.templating import Page
from lightkeeper.monitor.show.web import answers as making
from lightkeeper.monitor.show.web.answers import Latest, dump
from lightkeeper.monitor.show.web.pages import FLEET, Context, PagePlace, make
from tests.changed import replace
from tests.page.views import crowd

HERE = PagePlace(FLEET)


class Maker:
    """Makes values that say how many were made before; may be held up."""

    def __init__(self) -> None:
        self.made = 0
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.began = threading.Event()

    def __call__(self) -> str:
        self.began.set()
        assert self.goes_on.wait(10)
        self.made += 1
        return f"value {self.made}"


def test_many_who_ask_at_once_get_one_value_that_is_made_once() -> None:
    latest, view, maker = Latest[str](), crowd(1, 1), Maker()
    with ThreadPoolExecutor(16) as pool:
        values = set(pool.map(lambda _: latest.get(view, "page", maker), range(64)))
    assert values == {"value 1"}


def test_who_asks_while_it_is_made_gets_the_one_before() -> None:
    latest, maker = Latest[str](), Maker()
    first, second = crowd(1, 1), crowd(1, 1, tick=101)
    latest.get(first, "page", maker)
    maker.goes_on.clear()
    maker.began.clear()
    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(latest.get, second, "page", maker)
        assert maker.began.wait(10)
        assert latest.get(second, "page", maker) == "value 1"
        maker.goes_on.set()
        assert later.result(10) == "value 2"
    assert latest.get(second, "page", maker) == "value 2"


def test_nobody_gets_one_that_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    latest, maker = Latest[str](), Maker()
    latest.get(crowd(1, 1), "page", maker)
    monkeypatch.setattr(making, "_OLD_S", 0.0)
    second = crowd(1, 1, tick=102)
    maker.goes_on.clear()
    maker.began.clear()
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(latest.get, second, "page", maker) for _ in range(2)]
        assert maker.began.wait(10)
        maker.goes_on.set()
        assert {future.result(10) for future in waiting} == {"value 2"}


def test_each_thing_that_is_asked_for_is_made_by_itself_and_few_are_kept() -> None:
    latest, view, maker = Latest[str](), crowd(1, 1), Maker()
    for key in range(40):
        latest.get(view, key, maker)
    latest.get(view, 39, maker)
    assert maker.made == 40
    latest.get(view, 0, maker)
    assert maker.made == 41


def test_an_old_view_is_not_kept_for_a_page_that_nobody_asks_for_any_more() -> None:
    latest, maker, view = Latest[str](), Maker(), crowd(1, 1)
    latest.get(view, "once", maker)
    seen = weakref.ref(view)
    del view
    gc.collect()
    assert seen() is None


def test_json_is_json_also_of_a_path_that_is_not_utf_8() -> None:
    assert dump({"path": "a\udcff"}) == b'{"path":"a\\udcff"}\n'
    assert dump({"path": "\N{SNOWMAN}"}) == '{"path":"\N{SNOWMAN}"}\n'.encode()


def test_a_value_that_took_long_to_make_serves_later_views_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    latest, maker = Latest[str](), Maker()
    monkeypatch.setattr(making, "LONG_S", -1.0)
    monkeypatch.setattr(making, "_SPARES", 1e9)
    latest.get(crowd(1, 1), "page", maker)
    second = crowd(1, 1, tick=101)
    assert [latest.get(second, "page", maker) for _ in range(3)] == ["value 1"] * 3
    worked_on = replace(second, work=Work((WorkRow(WorkAction.ACK, "ann", 1.0),)))
    assert latest.get(worked_on, "page", maker) == "value 2"  # who clicked sees it at once
    monkeypatch.setattr(making, "_SPARES", 0.0)
    latest.get(second, "other", maker)
    assert latest.get(crowd(1, 1, tick=102), "other", maker) == "value 4"


def test_a_page_of_ten_thousand_ranks_is_answered_from_what_was_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The figures are printed; what is asserted is that asking again costs next to nothing."""
    monkeypatch.setattr(making, "LONG_S", 60.0)  # it is made of every view
    pages = Latest[Page]()
    spent: list[list[float]] = [[], []]
    for tick in range(2):
        view = crowd(1250, 8, tick=100 + tick)
        for turn in spent:
            began_s = time.thread_time()
            body = pages.get(view, HERE, partial(make, Context(view, HERE))).compressed
            turn.append(1e3 * (time.thread_time() - began_s))
    assert len(body) < 30_000
    first, again = spent
    print(
        f"\n10,000 ranks: page {first[0]:.0f} ms of CPU, then {min(first[1:]):.0f} a tick, again "
        f"{min(again):.2f}"
    )
    assert min(again) < min(first) / 20
