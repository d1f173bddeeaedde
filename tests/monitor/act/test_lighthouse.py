"""The Lighthouse's page, captured and live."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightkeeper.monitor.act.http import Fetcher
from lightkeeper.monitor.act.lighthouse import PAGE_MAX_BYTES, Lighthouse, PageError, parse_status
from lightkeeper.monitor.model.names import ReplicaId
from lightkeeper.monitor.model.observation import LighthouseAway, LighthouseView, Member
from tests.deep import crossed
from tests.monitor.fakes import FakeLighthouse

CASES = Path(__file__).parent / "cases"
GROUP_0 = "rg_0:7c1d9b3e-3f5a-4f0e-9a57-5b8c1f6d2a10"
GROUP_1 = "rg_1:e0d4a6c2-8b7f-4d6e-b1c3-2f9e8d7c6b5a"
ODD = "rg_2:<b>&odd</b>: seen 3s ago"


def test_reads_a_page_captured_from_torchft_0_2_0() -> None:
    view = parse_status((CASES / "lighthouse_status_torchft_0.2.0.html").read_text())
    assert view == LighthouseView(
        quorum_id=1,
        members=(
            Member(ReplicaId(GROUP_0), 120, "http://node:4000", "node:29500", 2),
            Member(ReplicaId(GROUP_1), 118, "http://node:4000", "node:29500", 2, recovering=True),
            Member(ReplicaId(ODD), 120, "http://node:4000", "node:29500", 2),
        ),
        heartbeat_ages_s={
            ReplicaId("rg_1:0a2f0d1e-evicted"): 1.2180191360000001,
            ReplicaId(GROUP_0): 0.211531286,
            ReplicaId(GROUP_1): 0.211752156,
            ReplicaId(ODD): 0.206032345,
        },
        status="New quorum not ready, only have 0 participants, need min_replicas 1 "
        "[0/0 participants healthy][3 heartbeating][shrink_only=false]",
        expired=frozenset({ReplicaId("rg_1:0a2f0d1e-evicted")}),
        requests=0,
    )


EMPTY = sorted(path.name for path in CASES.glob("lighthouse_status_empty_*.html"))


@pytest.mark.parametrize("name", EMPTY)
def test_reads_a_page_without_a_quorum(name: str) -> None:
    view = parse_status((CASES / name).read_text())
    assert (view.quorum_id, view.members, dict(view.heartbeat_ages_s)) == (0, (), {})


@pytest.mark.parametrize("version", ["0.1.1", "nightly_2026.10.26"])
def test_reads_the_pages_of_other_versions(version: str) -> None:
    """0.1.1 has rooms; the nightly's page is that of 0.2.0."""
    view = parse_status((CASES / f"lighthouse_status_torchft_{version}.html").read_text())
    assert (view.quorum_id, view.members) == (
        1,
        (
            Member(ReplicaId("rg_0:a"), 120, "http://h1:1234", "h1:29500", 2),
            Member(ReplicaId("rg_1:<b>&"), 118, "http://h1:1234", "h1:29500", 2, recovering=True),
        ),
    )
    assert sorted(view.heartbeat_ages_s) == ["rg_0:a", "rg_1:<b>&", "rg_9:dead"]
    assert all(3.0 < age_s < 3.1 for age_s in view.heartbeat_ages_s.values())
    assert "only have 0 participants" in view.status
    assert view.requests == (None if version == "0.1.1" else 0)


def test_counts_the_requests_for_the_next_quorum() -> None:
    page = (CASES / "lighthouse_status_torchft_0.2.0.html").read_text()
    assert parse_status(page.replace("[0/0 part", "[2/3 part")).requests == 3
    assert parse_status(page.replace("[0/0 part", "[of parts")).requests is None


def test_a_lighthouse_of_several_rooms_is_not_read_as_one() -> None:
    html = (CASES / "lighthouse_status_torchft_0.1.1.html").read_text()
    with pytest.raises(PageError, match=r"2 rooms \('room, other'\)"):
        parse_status(html + html.replace("Room Status: room", "Room Status: other"))


@pytest.mark.parametrize(
    ("text", "seconds"), [("1.5ms", 0.0015), ("7µs", 7e-6), ("3s", 3.0), ("9e-7s", 9e-7)]
)
def test_reads_every_way_in_which_rust_prints_a_duration(text: str, seconds: float) -> None:
    page = f'Current quorum_id: 1<li class="heartbeat">a: seen {text} ago</li>'
    assert parse_status(page).heartbeat_ages_s == {"a": pytest.approx(seconds)}


@pytest.mark.parametrize(
    "page",
    [
        "",
        "<h1>404</h1>",
        "Current quorum_id: many",
        "Current quorum_id: " + "9" * 5000,
        'Current quorum_id: 1<div class="member"><b>a</b> no step</div>',
        'Current quorum_id: 1<div class="member">Step: 3</div>',
        'Current quorum_id: 1<li class="heartbeat">a: seen long ago</li>',
        'Current quorum_id: 1<li class="heartbeat">a: seen ..s ago</li>',
    ],
    ids=["empty", "other", "word", "long", "stepless", "nameless", "ageless", "dots"],
)
def test_a_page_that_it_cannot_understand_is_an_error(page: str) -> None:
    with pytest.raises(PageError):
        parse_status(page)


@given(st.text() | st.text(alphabet="<>divbl/= \"'Currentquom_id:19&;#!-", max_size=200))
def test_no_page_does_more_than_fail_to_parse(page: str) -> None:
    for text in (page, "Current quorum_id: 1" + page):
        with contextlib.suppress(PageError):
            assert isinstance(parse_status(text), LighthouseView)


def test_looks_and_kills_over_http(lighthouse: FakeLighthouse, fetcher: Fetcher) -> None:
    lighthouse.form("rg_0:a", ODD)
    light = Lighthouse(lighthouse.url, fetcher)
    view = light.look(2.0)
    assert isinstance(view, LighthouseView)
    assert [member.replica_id for member in view.members] == ["rg_0:a", ODD]
    assert light.begin_kill(ReplicaId(ODD), 2.0).result() == "answered 500: transport error"
    assert lighthouse.kills == [ODD]


def test_a_lighthouse_that_is_away_is_data(lighthouse: FakeLighthouse, fetcher: Fetcher) -> None:
    lighthouse.down = True
    light = Lighthouse(lighthouse.url, fetcher)
    assert light.look(2.0) == LighthouseAway("GET /status answered 503")
    lighthouse.close()
    away = light.look(2.0)
    assert isinstance(away, LighthouseAway)


TAGS_MOST = 100_000
MEMBER = '<div class="member"><b>a:1</b>Step: 1 Manager: http://x:1 World size: 2</div>'
BEAT = '<li class="heartbeat">a:%06d: seen 0.3s ago</li>'
WORST = {
    **{part[:24]: part for part in [
        "<!--", "<a", "<", "<div ", "&", " ", "Next quorum status:  ", "Step: ", "Room Status: ",
        "Current quorum_id:  ", "<b>", "&lt;", "&notit;", "&#", "&" + "a" * 40, MEMBER, "<div>",
        '<li class="heartbeat">x: seen ', '<li class="heartbeat">' + " " * 50, "</",
        '<div class="member"><b>x</b> Step: 1 </div>', "<" + "x" * 399, "<" + "x" * 400 + ">",
        "&#" + "9" * 4000 + ";", "<div " + "class=" * 60 + ">", "<div " + "a=b " * 99 + ">",
        '<div class="' + "a " * 190 + '">',
    ]},
    "one reference": "&#" + "9" * PAGE_MAX_BYTES, "one tag": "<div " + "a=b " * (1 << 20),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "before"),
    crossed(WORST, ["", '<div class="member"><b>x</b>', '<li class="heartbeat">']),
)
def test_no_page_of_the_largest_size_takes_long_to_read(name: str, before: str) -> None:
    """300 KB of `<!--` took minutes, and a reference of 5,000 digits raised."""
    part = WORST[name]
    tags = part.count("<") + part.count("&")
    fits = min(PAGE_MAX_BYTES // len(part), (TAGS_MOST - 2) // tags if tags else PAGE_MAX_BYTES)

    def cost_s(times: int) -> float:
        page = "Current quorum_id: 1" + before + part * times
        began_s = time.thread_time()
        with contextlib.suppress(PageError):
            parse_status(page)
        return time.thread_time() - began_s

    full = PAGE_MAX_BYTES // len(part)
    assert any(cost_s(fits) < 1.0 for _ in range(3))
    assert any(cost_s(full) < 1.0 for _ in range(3))


def test_the_largest_pages_of_real_jobs_are_read() -> None:
    beat = '  <li class="heartbeat\n    old\n  ">\n    rg_%d:%s: seen 3.052540568s ago\n  </li>\n'
    beat += "\n\n\n  \n"
    ids = [(number, f"{number:036d}") for number in range(PAGE_MAX_BYTES // len(beat) - 2000)]
    page = "Current quorum_id: 1" + "".join(beat % each for each in ids)
    assert PAGE_MAX_BYTES * 0.8 < len(page) < PAGE_MAX_BYTES * 1.8
    assert len(parse_status(page).heartbeat_ages_s) == len(ids)


@pytest.mark.parametrize(
    "rest",
    ["<b>" * 200_000, "&#" + "9" * 5000 + ";" + BEAT, MEMBER.replace("a:1", "a" * 501),
     BEAT.replace("a:%06d", "a" * 501), MEMBER.replace("Step: 1", "Step: " + "1" * 19)],
    ids=["tags", "reference", "member", "heartbeat", "number"],
)  # fmt: skip
def test_a_hostile_page_is_unreadable_and_no_more(
    lighthouse: FakeLighthouse, fetcher: Fetcher, rest: str
) -> None:
    lighthouse.html = lambda: "Current quorum_id: 1" + rest
    away = Lighthouse(lighthouse.url, fetcher).look(5.0)
    if rest.startswith("&"):  # as text it is no harm
        assert isinstance(away, LighthouseView)
    else:
        assert isinstance(away, LighthouseAway)
        assert away.reason.startswith("the Lighthouse's page cannot be read: ")
        assert away.reason.isprintable()
        assert len(away.reason) < 200


def test_an_age_is_a_number() -> None:
    page = "Current quorum_id: 1" + BEAT.replace("0.3s", "9" * 400 + "s")
    assert list(parse_status(page).heartbeat_ages_s.values()) == [1e9]
