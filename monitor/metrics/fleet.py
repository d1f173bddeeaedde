"""What is seen of the fleet and its Lighthouse, as gauges."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric

from monitor.metrics.gauge import Row, gauge
from monitor.names import group_of_replica, split_rank_name
from monitor.pipeline import RankHealth
from monitor.snapshot import LighthouseAway, LighthouseView
from monitor.view import View, groups_of

_MEMBERS_SHOWN: Final = 4096
"""Series of a metric by member; a job of more groups has other worries."""


def ranks(view: View) -> Iterator[Metric]:
    """How many are how well, and how long each works a step."""
    tally = Tally(str(health) for health in view.result.rank_health.values())
    rows = [((str(health),), float(tally[str(health)])) for health in RankHealth]
    yield gauge("ranks", "Registered ranks, by health.", ("health",), rows)
    busy = []
    for rank, tempo in sorted(view.tempos.items()):
        group, number = split_rank_name(rank)
        busy.append(((str(group), str(number)), tempo.busy_s))
    text = "Mean seconds a step in which the rank did not wait for others, last window."
    yield gauge("rank_busy_seconds", text, ("replica_group", "rank"), busy)


def groups(view: View) -> Iterator[Metric]:
    """How well each is, and how far."""
    seen, label = groups_of(view), ("replica_group",)
    tally = Tally(group.health for group in seen)
    rows = [((health,), float(count)) for health, count in sorted(tally.items())]
    yield gauge("groups", "Replica groups, by the health of their worst rank.", ("health",), rows)
    yield gauge(
        "group_step",
        "Step that the group works on.",
        label,
        [((one.group,), one.step) for one in seen if one.step is not None],
    )
    commits = CounterMetricFamily(
        "lightkeeper_group_commits",
        "Steps committed by the group's present processes.",
        labels=label,
    )
    for one in seen:
        if one.commits is not None:
            commits.add_metric((one.group,), one.commits)
    yield commits
    yield gauge(
        "group_in_quorum",
        "1 while the group is a member of the last quorum.",
        label,
        [((one.group,), float(one.in_quorum)) for one in seen if one.in_quorum is not None],
    )
    yield gauge(
        "group_last_heartbeat_timestamp_seconds",
        "Unix time of the group's last heartbeat to the Lighthouse.",
        label,
        [
            ((one.group,), view.snapshot.now_s - one.heartbeat_age_s)
            for one in seen
            if one.heartbeat_age_s is not None
        ],
    )


def lighthouse(view: View) -> Iterator[Metric]:
    """Whether it answers, and its quorum."""
    page, record = view.snapshot.lighthouse, view.lighthouse
    for name, text, count in (
        (
            "lighthouse_restarts",
            "Restarts of the Lighthouse seen by this monitor.",
            record.restarts,
        ),
        ("quorum_changes", "Quorums formed since this monitor looks.", record.quorum_changes),
    ):
        counter = CounterMetricFamily(f"lightkeeper_{name}", text)
        counter.add_metric((), count)
        yield counter
    if record.view_s is not None:
        text = "Unix time at which the Lighthouse's page was last read."
        yield gauge("lighthouse_read_timestamp_seconds", text, (), [((), record.view_s)])
    up = 0.0 if isinstance(page, LighthouseAway) else 1.0
    yield gauge("lighthouse_up", "1 while the Lighthouse's page can be read.", (), [((), up)])
    if isinstance(page, LighthouseView):
        quorum_id = float(page.quorum_id)
        members = float(len(page.members))
        yield gauge("quorum_id", "Id of the last quorum.", (), [((), quorum_id)])
        text = "Members of the last quorum."
        yield gauge("quorum_participants", text, (), [((), members)])
        text = (
            "Age of the last heartbeat of each member of the last quorum, as the Lighthouse says."
        )
        yield gauge("member_heartbeat_age_seconds", text, ("replica_group",), _beats(page))


def _beats(view: LighthouseView) -> list[Row]:
    """Members only: the Lighthouse remembers every id that ever beat. The oldest of each group."""
    ages_s: dict[str, float] = {}
    for member in view.members[:_MEMBERS_SHOWN]:
        age_s, group = (
            view.heartbeat_ages_s.get(member.replica_id),
            group_of_replica(member.replica_id),
        )
        if age_s is not None:
            ages_s[group] = max(age_s, ages_s.get(group, 0.0))
    return [((group,), age_s) for group, age_s in sorted(ages_s.items())]
