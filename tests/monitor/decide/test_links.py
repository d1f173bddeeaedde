"""LinkTemplates are filled in with what is known, quoted, and left out where anything is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from lightkeeper.monitor.decide.links import PLACEHOLDERS, LinkTemplates, link_problem
from lightkeeper.monitor.model.incident import Incident, State, Transition, trace_id
from lightkeeper.monitor.model.names import Host, RankName
from lightkeeper.monitor.model.run import Run
from lightkeeper.worker_server.wire import TRACKERS
from tests.monitor.samples import incident, seen, snapshot

WANDB = {"wandb_run": "abc", "wandb_project": "my llm", "wandb_entity": "lab"}
ALL = {name: f"https://h/{{{name}}}" for name in PLACEHOLDERS}
PLACE = {"pod": "rg-1-0", "namespace": "train", "node": "n7", "slurm_job_id": "42"}


def rank(
    group: str, number: int = 0, trackers: dict[str, str] | None = None,
    place: dict[str, str] | None = None, **who: Any,
) -> Any:  # fmt: skip
    made = seen(group, number, **who)
    report = msgspec.structs.replace(made.report, trackers=trackers or {})
    identity = replace(made.identity, place=place or {})
    return msgspec.structs.replace(made, identity=identity, outcome=report)


def links(
    templates: dict[str, str], *ranks: Any, run: str = "r2", now_s: float = 1000.0
) -> LinkTemplates:
    taken = replace(snapshot(*ranks, now_s=now_s), run=Run(run, "job", 10.0) if run else None)
    return LinkTemplates(templates, taken)


def fired(run: str = "r2", **more: Any) -> Incident:
    return replace(incident(), run=run, hosts=(Host("node1"),), **more)


def test_an_incident_is_filled_in_with_what_is_known_of_it_and_of_its_rank() -> None:
    trackers = {name: f"a {name}" for name in TRACKERS}
    here = rank("rg_1", trackers=trackers, incarnation="one", host="node1", place=PLACE)
    said = links(ALL, here).of_incident(fired())
    values = {
        "job": here.identity.job, "run": "r2", "group": "rg_1", "rank": "rg_1.0", "host": "node1",
        **PLACE, "from_ms": "-510000", "to_ms": "1600000", "incident": "inc-1",
        "kind": "not_entered", "trace_id": trace_id("inc-1"),
        **{name: f"a%20{name}" for name in TRACKERS},
    }  # fmt: skip
    assert said == {name: f"https://h/{value}" for name, value in values.items()}


def test_the_time_ends_ten_minutes_after_the_incident() -> None:
    over = (Transition(200.0, "resolved", "it recovered"),)
    ended = fired(state=State.RESOLVED, story=over, resolution="it recovered")
    said = links({"a": "http://h/?from={from_ms}&to={to_ms}"}).of_incident(ended)
    assert said == {"a": "http://h/?from=-510000&to=800000"}


def test_a_link_is_left_out_where_a_value_is_not_known() -> None:
    templates = {"pod": "http://h/{pod}", "host": "http://h/{host}", "plain": "http://h/"}
    said = links(templates, rank("rg_1", incarnation="one")).of_incident(fired())
    assert said == {"host": "http://h/node1", "plain": "http://h/"}


@pytest.mark.parametrize(
    ("run", "incarnation"), [("r1", "one"), ("r2", "two"), ("", "one")],
    ids=["earlier-run", "restarted", "unknown-run"],
)  # fmt: skip
def test_what_ranks_say_now_is_not_said_of_another_run_or_process(
    run: str, incarnation: str
) -> None:
    templates = {"pod": "http://h/{pod}", "rank": "http://h/{rank}"}
    here = rank("rg_1", incarnation=incarnation, place=PLACE, trackers=WANDB)
    assert links(templates, here).of_incident(fired(run)) == {"rank": "http://h/rg_1.0"}
    if run != "r2":
        tracked = links({"w": "http://h/{wandb_run}"}, here)
        assert tracked.of_incident(fired(run)) == {}


def test_who_has_no_run_of_a_tracker_is_in_that_of_his_group_or_of_the_job() -> None:
    """Often rank 0 alone has one."""
    templates = {"W&B": "https://wandb.ai/{wandb_entity}/{wandb_project}/runs/{wandb_run}"}
    own = rank("rg_2", 1, trackers={**WANDB, "wandb_run": "own"})
    group = rank("rg_2", 0, trackers={**WANDB, "wandb_run": "of-group"})
    made = links(templates, rank("rg_0", trackers=WANDB), rank("rg_1"), group, own)

    def run_of(name: str) -> str:
        return made.of_rank(RankName(name))["W&B"].removeprefix(
            "https://wandb.ai/lab/my%20llm/runs/"
        )

    assert [run_of(name) for name in ("rg_1.0", "rg_2.0", "rg_2.1")] == ["abc", "of-group", "own"]
    assert made.of_host(Host("anywhere"))["W&B"].endswith("/runs/abc")
    assert made.of_rank(RankName("rg_9.0")) == {}


def test_a_host_has_the_last_hour_and_no_rank() -> None:
    templates = {"GPUs": "http://h/?n={host}&from={from_ms}&to={to_ms}", "rank": "http://h/{rank}"}
    made = links(templates, rank("rg_1"), now_s=7200.0)
    assert made.of_host(Host("a/b c")) == {"GPUs": "http://h/?n=a%2Fb%20c&from=3600000&to=7200000"}


@pytest.mark.parametrize("value", ['a"b', "a'b", "a\\b", "{job}", "x" * 257, ""])
def test_a_value_that_would_change_a_query_or_has_no_end_is_never_filled_in(value: str) -> None:
    here = rank("rg_1", trackers={"wandb_run": value})
    assert links({"w": "http://h/{wandb_run}"}, here).of_rank(RankName("rg_1.0")) == {}


@pytest.mark.parametrize(
    "template",
    [
        "http://h/a\u202eb", "http://h/ b", "http:///x", "//h/x", "http://[h/", "http://u@h/",
        "http://h/" + "x" * 2000,
    ],
)  # fmt: skip
def test_no_other_url_is_a_template(template: str) -> None:
    assert link_problem("a", template) is not None
    assert link_problem("a", "https://h:3000/explore?q=%7Bhost%3D%22{host}%22%7D") is None
