"""Pages of incidents: who may see what ranks said, and which ones a form asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lightkeeper.monitor.model.incident import BundleView, State
from lightkeeper.monitor.show.web.incident_page import BundleStacks
from tests.monitor.api import READERS, app_client
from tests.monitor.decide.scene import ID, hang
from tests.monitor.samples import view as view_of

SECRET = "a secret of the job"
STACKS = BundleStacks(f"<p>{SECRET}</p>")


def older(**changes: Any):
    incident = hang(**changes)
    return replace(
        incident,
        id="inc-0",
        milestones=replace(incident.milestones, first_seen_s=50.0),
        last_seen_s=60.0,
    )


def client(fleet, fetcher, *incidents, stacks: BundleStacks = STACKS, **more):
    view = replace(view_of(), incidents=incidents or (hang(),), bundles={ID: BundleView(9, 1.0)})
    asked: list[str] = []

    def read(incident_id):
        asked.append(incident_id)
        return stacks

    made = app_client(fleet.add(), fetcher, view=lambda: view, stacks=read, **more)
    made.read_for = asked
    return made


def text(answer) -> str:
    return answer.get_data(as_text=True)


@pytest.mark.parametrize(("more", "headers", "status"), READERS)
def test_what_ranks_said_is_shown_to_whom_ranks_may_be_read(
    more, headers, status, fleet, fetcher
) -> None:
    shown = status == 200
    made = client(fleet, fetcher, **more)
    answer = made.get("/incidents/inc-1", headers=headers)
    if headers["Host"] == "evil.example":  # nothing is shown by that name
        assert (answer.status_code, made.read_for) == (status, [])
        return
    assert answer.status_code == 200
    assert (SECRET in text(answer)) is shown
    assert ("/v1/incidents/inc-1/bundle</a>" in text(answer)) is False
    assert ("Stacks and flight records may hold secrets" in text(answer)) is not shown
    assert made.read_for == (["inc-1"] if shown else []), "nor is it read for a stranger"
    assert "What was done" in text(answer)


def test_the_host_header_is_no_markup(fleet, fetcher) -> None:
    made = client(fleet, fetcher, loopback=False)
    answer = made.get("/incidents/inc-1", headers={"Host": "<script>alert(1)</script>"})
    assert "<script>" not in text(answer)


def test_earlier_ones_on_the_same_host_or_group_are_linked(fleet, fetcher) -> None:
    made = client(fleet, fetcher, hang(), older())
    assert '<a href="/incidents/inc-0">' in text(made.get("/incidents/inc-1"))
    assert '<a href="/incidents/inc-1">' not in text(made.get("/incidents/inc-0"))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["inc-1", "inc-0"]),
        ("kind=&group=&state=&since=", ["inc-1", "inc-0"]),
        ("state=open", ["inc-1"]),
        ("state=firing", ["inc-1"]),
        ("state=resolved", ["inc-0"]),
        ("kind=dead", []),
        ("group=rg_1", ["inc-1", "inc-0"]),
        ("group=rg_9", []),
        ("since=1s", ["inc-1"]),
    ],
)
def test_the_form_asks_as_the_api_does(query, expected, fleet, fetcher) -> None:
    made = client(fleet, fetcher, hang(state=State.FIRING), older())
    page = text(made.get(f"/incidents?{query}"))
    listed = made.get(f"/v1/incidents?{query}").json["incidents"]
    assert [row["id"] for row in listed] == expected
    assert [
        incident_id
        for incident_id in ("inc-1", "inc-0")
        if f'href="/incidents/{incident_id}"' in page
    ] == expected


def test_a_filter_that_means_nothing_is_told_above_the_form(fleet, fetcher) -> None:
    made = client(fleet, fetcher)
    answer = made.get("/incidents?state=odd&since=<b>")
    assert answer.status_code == 400
    assert "expected a span such as" in text(answer)
    assert (
        "<b>" not in text(answer).replace("<b></b>", "").split('id="found"')[0].split("totals")[0]
    )
    assert made.get("/v1/incidents?state=odd").status_code == 400


def test_the_list_says_what_all_of_them_came_to(fleet, fetcher) -> None:
    made = client(fleet, fetcher)
    totals = made.get("/v1/incidents").json["totals"]
    assert totals["evictions"] == 1
    assert "rank-seconds" in text(made.get("/incidents"))
