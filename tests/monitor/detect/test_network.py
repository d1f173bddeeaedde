"""Connections as a witness: lost hosts, broken links, slow links, and who is released."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Eviction, Guard
from lightkeeper.monitor.model.names import GroupName, Host, RankName
from lightkeeper.monitor.model.observation import LighthouseAway, LighthouseView, Pause, Snapshot
from lightkeeper.monitor.model.verdict import Confidence
from lightkeeper.worker_server.wire import ACROSS, Connection, GroupHead, StateReport, Trouble
from tests.changed import replace
from tests.monitor.fleet import START_S, At, Drive, SimFleet, at, crash, hang, restart, silent
from tests.monitor.fleet.told import Alter, observed, reports

ADDRESS = {f"rg_{n}.{r}": f"10.0.{n}.{r}" for n in range(4) for r in range(2)}


def chain(*alters: Alter) -> Alter:
    """One change after the other."""

    def alter(seen: Snapshot) -> Snapshot:
        for change in alters:
            seen = change(seen)
        return seen

    return alter


def polled_by_address(seen: Snapshot) -> Snapshot:
    """Every rank has a host and an address of its own, by which the monitor reaches it."""
    return observed(lambda each: replace(each, url=f"http://{ADDRESS[each.rank]}:8000"))(seen)


def row(peer: str, trouble: Trouble, for_s: float, **more: object) -> Connection:
    return Connection("10.9.9.9:4000", f"{ADDRESS[peer]}:5000", trouble, for_s, **more)


def connected(rank: str, peers: dict[str, Trouble], since: int, **more: object) -> Alter:
    """The kernel of a rank has these odd connections from this second on."""

    def alter(seen: Snapshot) -> Snapshot:
        for_s = seen.now_s - START_S - since
        if for_s < 0:
            return seen
        rows = tuple(row(peer, trouble, for_s, **more) for peer, trouble in peers.items())
        return reports(lambda report: replace(report, connections=rows), rank)(seen)

    return alter


def unacknowledged(rank: str, *peers: str, since: int = 20) -> Alter:
    troubles = dict.fromkeys(peers, Trouble.UNACKNOWLEDGED)
    return connected(rank, troubles, since, queued=192, retries=4)


def lost(rank: str = "rg_1.0", for_s: float = 300.0) -> list[At]:
    """Its host is out of reach: no answers, no heartbeats, and no part in the quorum."""
    return [at(20, crash(rank)), at(20, silent(rank, for_s))]


def inside(seen: Snapshot) -> Snapshot:
    """Who waits across groups is inside a collective of TorchFT's group."""

    def enters(report: StateReport) -> StateReport:
        if report.step is None or report.step.phase != "communication":
            return report
        head = GroupHead(ACROSS, 3, 9, 1, "all_reduce", report.step.phase_age_s)
        return replace(report, heads=(*report.heads, head))

    return reports(enters)(seen)


def of(script: list[At], *alters: Alter, config: KeeperConfig | None = None) -> Drive:
    fleet = SimFleet(3, 1, script)
    for rank in fleet.ranks():
        rank.host = f"node-{rank.group}"
    return Drive(fleet, config, alter=chain(polled_by_address, inside, *alters))


# -- lost hosts ------------------------------------------------------------------------------------


def test_a_host_that_kernels_miss_too_is_lost_within_seconds() -> None:
    """17 s without that witness."""
    drive = of(lost(), unacknowledged("rg_0.0", "rg_1.0")).run(40)
    incident = drive.incident("dead")
    assert drive.fired[incident.id] <= 7.0 + 20
    assert incident.culprits == ("rg_1.0",)
    assert incident.verdict.confidence is Confidence.CERTAIN
    assert (
        "rg_0.0 has sent 192 bytes to node-rg_1 (10.0.1.0) and nobody has acknowledged them"
        in incident.verdict.reason
    )
    assert "rg_0.0" in incident.verdict.victims


def test_one_kernels_word_alone_loses_no_host() -> None:
    """Its WorkerServer answers, and it beats: whoever says so is at best cut off from it."""
    drive = of([], unacknowledged("rg_0.0", "rg_1.0")).run(60)
    assert not drive.seen


def test_a_host_that_only_the_monitor_does_not_hear_is_not_lost_for_a_kernels_word() -> None:
    drive = of([at(20, silent("rg_1.0", 300.0))], unacknowledged("rg_0.0", "rg_1.0")).run(60)
    assert not drive.seen


def test_a_host_that_beats_but_answers_neither_the_monitor_nor_two_kernels_is_doubted() -> None:
    """Only short packets come through, as with a broken MTU."""
    missed = unacknowledged("rg_0.0", "rg_1.0"), unacknowledged("rg_2.0", "rg_1.0")
    drive = of([at(20, silent("rg_1.0", 300.0))], stand(*ALL), *missed).run(36)
    incident = drive.incident("dead")
    assert (incident.culprits, incident.candidates) == ((), ("rg_1.0",))
    assert incident.verdict.reason.startswith("host node-rg_1 does not answer: no WorkerServer")
    assert drive.fired[incident.id] == 31.0
    assert not drive.evicts


@pytest.mark.parametrize("for_s", [4.0, 6.0])
def test_a_link_that_is_down_for_seconds_loses_no_host(for_s: float) -> None:
    def until(change: Alter) -> Alter:
        return lambda seen: change(seen) if seen.now_s - START_S < 20 + for_s else seen

    def beats(seen: Snapshot) -> Snapshot:
        """Its heartbeats stop for as long."""
        view, now_s = seen.lighthouse, seen.now_s - START_S
        assert isinstance(view, LighthouseView)
        name = min((rid for rid in view.heartbeat_ages_s if rid.startswith("rg_1")), default=None)
        if name is None:
            return seen
        age_s = min(max(0.0, now_s - 20), for_s) if 20 <= now_s < 20 + for_s else 0.1
        ages = {**view.heartbeat_ages_s, name: age_s}
        expired = frozenset(rid for rid, old_s in ages.items() if old_s > 5.0)
        return replace(seen, lighthouse=replace(view, heartbeat_ages_s=ages, expired=expired))

    quiet = until(unacknowledged("rg_0.0", "rg_1.0"))
    drive = of([at(20, silent("rg_1.0", for_s))], beats, quiet).run(60)
    assert not drive.fired


def stand(*ranks: str, since: int = 20) -> Alter:
    """These ranks do not move."""
    kept: dict[str, StateReport] = {}

    def alter(seen: Snapshot) -> Snapshot:
        if seen.now_s - START_S < since:
            return seen

        def still(report: StateReport) -> StateReport:
            rank, for_s = report.identity.rank, seen.now_s - START_S - since
            stood = kept.setdefault(rank, report)
            heads = tuple(replace(head, age_s=head.age_s + for_s) for head in stood.heads)
            step = replace(
                stood.step,
                phase="communication",
                phase_age_s=stood.step.phase_age_s + for_s,
                last_commit_age_s=(stood.step.last_commit_age_s or 0.0) + for_s,
            )
            return replace(report, step=step, heads=heads)

        return reports(still, *ranks)(seen)

    return alter


# -- survivors -------------------------------------------------------------------------------------


def no_new_quorum(since: int = 20) -> Alter:
    """Nobody asks for one: all wait in the exchange of the last."""
    kept: list[LighthouseView] = []

    def alter(seen: Snapshot) -> Snapshot:
        view = seen.lighthouse
        assert isinstance(view, LighthouseView)
        if seen.now_s - START_S < since:
            return seen
        kept.append(view)
        last = replace(view, quorum_id=kept[0].quorum_id, members=kept[0].members)
        return replace(seen, lighthouse=last)

    return alter


WAITING = (stand("rg_0.0", "rg_2.0", since=21), unacknowledged("rg_0.0", "rg_1.0"))


def test_ranks_that_wait_for_a_lost_host_are_released_once() -> None:
    drive = of(lost(), no_new_quorum(), *WAITING).run(40)
    ((at_s, release),) = drive.releases
    incident = drive.incident("dead")
    assert at_s == drive.fired[incident.id]
    assert (release.incident_id, release.group) == (incident.id, "rg_1")
    assert [survivor.rank for survivor in release.survivors] == ["rg_0.0", "rg_2.0"]
    assert {"10.0.0.0", "10.0.1.0", "10.0.2.0", "127.0.0.1"} <= set(release.addresses)
    assert not drive.evicts


def while_paused(seen: Snapshot) -> Snapshot:
    return replace(seen, pause=Pause("drill", "ada", START_S, None))


def in_a_later_quorum(seen: Snapshot) -> Snapshot:
    def later(report: StateReport) -> StateReport:
        return replace(report, step=replace(report.step, quorum_id=99))

    return reports(later)(seen)


@pytest.mark.parametrize("alter", [while_paused, in_a_later_quorum])
def test_nobody_is_released(alter: Alter) -> None:
    drive = of(lost(), no_new_quorum(), *WAITING, alter).run(50)
    assert drive.fired
    assert not drive.releases


@pytest.mark.parametrize("options", [{"observe": True}, {"release_survivors": 0}])
def test_nobody_is_released_where_that_is_off(options: dict[str, object]) -> None:
    config = KeeperConfig(**options)
    drive = of(lost(), no_new_quorum(), *WAITING, config=config).run(50)
    assert drive.fired
    assert not drive.releases


def test_who_waits_for_a_group_without_a_process_is_released_before_its_heartbeat_expires() -> None:
    """A process that it forked may keep its sockets open."""
    drive = of([at(20, crash("rg_1.0"))], no_new_quorum(), WAITING[0]).run(30)
    ((at_s, release), *_) = drive.releases
    assert (at_s, release.group) == (22.0, "rg_1")


def asks(*ranks: str) -> Alter:
    """They are in no exchange any more."""
    return reports(lambda report: replace(report, heads=()), *ranks)


def without_a_lighthouse(seen: Snapshot) -> Snapshot:
    """It goes away 5 s before a group does."""
    gone = seen.now_s - START_S >= 15
    return replace(seen, lighthouse=LighthouseAway("connection refused")) if gone else seen


def just_restarted(seen: Snapshot) -> Snapshot:
    new = LighthouseView(quorum_id=0, members=(), heartbeat_ages_s={}, status="")
    return replace(seen, lighthouse=new) if seen.now_s - START_S >= 22 else seen


@pytest.mark.parametrize("alters", [(without_a_lighthouse,), (no_new_quorum(), just_restarted)])
def test_without_a_lighthouse_the_dead_say_in_which_quorum_they_are_waited_for(
    alters: tuple[Alter, ...],
) -> None:
    """One waits in its exchange, beside another that asks for the next quorum."""
    script = [at(20, crash("rg_1.0"))]
    drive = of(script, *alters, asks("rg_0.0"), stand("rg_2.0", since=21)).run(30)
    ((at_s, release),) = drive.releases
    assert 21.0 <= at_s <= 24.0
    assert (release.group, [each.rank for each in release.survivors]) == ("rg_1", ["rg_2.0"])
    assert release.quorum_id == drive.fleet.rank(RankName("rg_1.0")).quorum[0]


def commits_since(seen: Snapshot) -> Snapshot:
    """A rank in a quorum of the same number, which a restarted Lighthouse formed since."""

    def later(report: StateReport) -> StateReport:
        return replace(report, step=replace(report.step, last_commit_age_s=0.5))

    return reports(later, "rg_0.0", "rg_2.0")(seen) if seen.now_s - START_S >= 21 else seen


def in_other_quorums(seen: Snapshot) -> Snapshot:
    """What the dead reported is another quorum than that of those who wait."""

    def earlier(report: StateReport) -> StateReport:
        return replace(report, step=replace(report.step, quorum_id=0))

    return reports(earlier, "rg_1.0")(seen)


@pytest.mark.parametrize(
    ("script", "alter"),
    [
        pytest.param([at(20, crash("rg_1.0"))], commits_since, id="of another quorum"),
        pytest.param([at(20, crash("rg_1.0"))], in_other_quorums, id="not that of the dead"),
        pytest.param([at(20, hang("rg_1.0"))], lambda seen: seen, id="it lives"),
        pytest.param(lost(), lambda seen: seen, id="nobody saw it die"),
    ],
)
def test_without_a_lighthouse_nobody_is_released_who_may_wait_for_the_living(
    script: list[At], alter: Alter
) -> None:
    drive = of(script, without_a_lighthouse, stand("rg_2.0", since=21), alter)
    drive.fleet.evictor_works = False
    assert not drive.run(60).releases


# -- broken links ----------------------------------------------------------------------------------


ALL = ("rg_0.0", "rg_1.0", "rg_2.0")
BOTH = (unacknowledged("rg_1.0", "rg_2.0"), unacknowledged("rg_2.0", "rg_1.0"))


def test_a_link_that_both_ends_call_broken_is_named_and_nobody_is_blamed() -> None:
    config = KeeperConfig(tie_break_s=0.0)
    drive = of([], stand(*ALL), *BOTH, config=config).run(60)
    incident = drive.incident("deadlock")
    assert drive.fired[incident.id] <= 20 + 12
    assert incident.verdict.candidates == ("rg_1.0", "rg_2.0")
    assert incident.verdict.reason.startswith(
        "node-rg_1 and node-rg_2 cannot reach each other, and everybody else reaches both: "
        "rg_1.0 has sent 192 bytes to node-rg_2"
    )
    assert not drive.evicts
    assert {hold.guard for _, hold in drive.holds} == {Guard.UNSURE}


def test_a_tie_is_broken_after_a_while_and_no_host_is_quarantined() -> None:
    drive = of([], stand(*ALL), *BOTH).run(60)
    fired_s = drive.fired[drive.incident("deadlock").id]
    ((at_s, evict), *_) = drive.evicts
    assert fired_s + 19 <= at_s <= fired_s + 21
    assert (evict.group, evict.quarantine, evict.keep_out) == ("rg_2", (), ())


@pytest.mark.parametrize("options", [{"observe": True}, {"min_replicas": 3}])
def test_a_tie_is_not_broken_against_the_guards(options: dict[str, object]) -> None:
    drive = of([], stand(*ALL), *BOTH, config=KeeperConfig(**options)).run(60)
    assert drive.fired
    assert not drive.evicts


def test_who_has_broken_links_to_several_is_the_culprit() -> None:
    drive = of(
        [],
        stand(*ALL),
        unacknowledged("rg_1.0", "rg_0.0", "rg_2.0"),
        unacknowledged("rg_0.0", "rg_1.0"),
        unacknowledged("rg_2.0", "rg_1.0"),
    ).run(30)
    incident = drive.incident("deadlock")
    assert incident.culprits == ("rg_1.0",)
    assert "node-rg_1 cannot reach node-rg_0 and node-rg_2" in incident.verdict.reason
    assert [evict.group for _, evict in drive.evicts] == ["rg_1"]


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param((BOTH[0],), id="only one end says so"),
        pytest.param((unacknowledged("rg_1.0", "rg_0.0", "rg_2.0"),), id="one rank says so of all"),
    ],
)
def test_one_ends_word_breaks_no_link(rows: tuple[Alter, ...]) -> None:
    drive = of([], stand(*ALL), *rows).run(34)
    assert not [i for i in drive.seen.values() if i.suspects]


def test_a_broken_link_between_ranks_that_train_is_no_fault() -> None:
    assert not of([], *BOTH).run(40).fired


# -- the Lighthouse --------------------------------------------------------------------------------


def cut_off(*ranks: str) -> Alter:
    """The Lighthouse hears nothing of their groups from 20 s on, and acknowledges nothing."""

    def alter(seen: Snapshot) -> Snapshot:
        view, for_s = seen.lighthouse, seen.now_s - START_S - 20
        if for_s < 0 or not isinstance(view, LighthouseView):
            return seen
        groups = {rank.partition(".")[0] for rank in ranks}
        ages = {
            name: for_s if name.partition(":")[0] in groups else age_s
            for name, age_s in view.heartbeat_ages_s.items()
        }
        expired = frozenset(name for name, age_s in ages.items() if age_s > 5.0)
        at_it = Connection(
            "10.9.9.9:4000", "10.0.9.9:29510", Trouble.UNACKNOWLEDGED, for_s, "lighthouse", 252, 5
        )
        tells = reports(lambda report: replace(report, connections=(at_it,)), *ranks)
        heard = replace(view, heartbeat_ages_s=ages, expired=expired)
        return tells(replace(seen, lighthouse=heard))

    return alter


def test_a_host_that_cannot_reach_the_lighthouse_is_named_within_12_s_and_spared() -> None:
    drive = of([], cut_off("rg_1.0")).run(40)
    incident = drive.incident("replica_lag")
    assert drive.fired[incident.id] <= 20 + 12
    assert incident.culprits == ("rg_1.0",)
    assert incident.verdict.reason.startswith("rg_1 cannot reach the Lighthouse: rg_1.0 has sent")
    assert {hold.guard for _, hold in drive.holds} == {Guard.SPARED}


def test_where_nobody_reaches_it_nobody_is_accused() -> None:
    drive = of([], cut_off("rg_0.0", "rg_1.0", "rg_2.0")).run(40)
    incident = drive.incident("lighthouse_away")
    assert not incident.suspects
    assert incident.verdict.reason.startswith("no rank reaches the Lighthouse, which answers this")


def test_where_most_do_not_reach_it_nobody_is_accused() -> None:
    """After a flap their kernels try again one by one (flap-lighthouse-8, 2026-11-28)."""
    drive = of([], cut_off("rg_0.0", "rg_2.0")).run(40)
    incident = drive.incident("lighthouse_away")
    assert not incident.suspects
    assert drive.accused() == set()
    assert incident.verdict.reason.startswith("2 of 3 groups do not reach the Lighthouse, which")


def test_who_has_not_tried_again_after_a_flap_of_the_lighthouse_is_not_accused() -> None:
    def away(seen: Snapshot) -> Snapshot:
        gone = 20 <= seen.now_s - START_S < 28
        return replace(seen, lighthouse=LighthouseAway("timeout")) if gone else seen

    drive = of([], cut_off("rg_1.0"), away).run(36)
    assert drive.accused() == set()
    assert drive.run(20).accused() == {"rg_1.0"}, "it is more than the flap"


# -- slow links ------------------------------------------------------------------------------------


def slow(rank: str, *peers: str, busy: float = 0.9, best: int = 10**8) -> Alter:
    troubles = dict.fromkeys(peers, Trouble.SLOW)
    return connected(rank, troubles, 20, rate=100_000, busy=busy, best=best)


def link_verdicts(drive: Drive) -> list[tuple[tuple[str, ...], Confidence]]:
    return [
        (verdict.suspects, verdict.confidence)
        for verdict in drive.last.verdicts
        if verdict.signature.startswith("slow_link")
    ]


def test_a_host_whose_link_is_slow_is_named_within_a_minute() -> None:
    drive = of([], slow("rg_1.0", "rg_2.0"), slow("rg_0.0", "rg_1.0", busy=0.4)).run(42)
    assert link_verdicts(drive) == [(("rg_1.0",), Confidence.LIKELY)]
    (verdict,) = [v for v in drive.last.verdicts if v.signature.startswith("slow_link")]
    assert verdict.reason.startswith(
        "the link of node-rg_1 is slow: rg_1.0 sends to node-rg_2 at 0.1 MB/s (100.0 MB/s before)"
    )
    assert 10 < verdict.lost_s < 15
    ((at_s, evict),) = drive.run(8).evicts  # once it has cost more than an eviction
    assert (evict.group, evict.quarantine) == ("rg_1", ("node-rg_1",))
    assert 44 <= at_s <= 47


def test_a_link_that_was_never_faster_is_told_and_accuses_nobody() -> None:
    both = slow("rg_1.0", "rg_2.0", "rg_0.0", best=100_000)
    assert link_verdicts(of([], both).run(50)) == [(("rg_1.0",), Confidence.UNSURE)]


@pytest.mark.parametrize(
    "alters",
    [
        pytest.param(
            (slow("rg_0.0", "rg_1.0"), slow("rg_1.0", "rg_2.0"), slow("rg_2.0", "rg_0.0")),
            id="slow for all",
        ),
        pytest.param(
            (slow("rg_1.0", "rg_2.0"), slow("rg_0.0", "rg_2.0", busy=0.35)), id="all send much"
        ),
        pytest.param((slow("rg_1.0", "rg_2.0", "rg_0.0", busy=0.5),), id="busy half the time"),
    ],
)
def test_busy_links_name_nobody(alters: tuple[Alter, ...]) -> None:
    drive = of([], *alters).run(60)
    assert [named for named, _ in link_verdicts(drive) if named == ("rg_1.0",)] == []


# -- groups that stay away -------------------------------------------------------------------------


def gone(rank: str, at_tick: int) -> Alter:
    """Its target is dropped."""

    def alter(seen: Snapshot) -> Snapshot:
        kept = tuple(each for each in seen.observations if each.rank != rank)
        return replace(seen, observations=kept) if seen.tick >= at_tick else seen

    return alter


Close = Callable[[Drive], None]


def test_a_group_that_is_gone_and_not_back_stays_an_open_incident() -> None:
    drive = of([at(20, crash("rg_1.0"))], gone("rg_1.0", 40)).run(150)
    incident = drive.incident("absent")
    assert 80 <= drive.fired[incident.id] <= 85
    assert incident.open
    assert incident.verdict.reason.startswith("rg_1 has been gone for")
    assert incident.severity == "warning"
    assert not drive.evicts


def test_a_group_that_has_made_steps_before_its_manager_named_it_is_not_missing() -> None:
    """FSDP2 makes a step of the optimizer first, which shows its state."""

    def rename(seen: Snapshot) -> Snapshot:
        *others, last = seen.observations
        report, who = last.report, replace(last.identity, launched_as=GroupName("launched"))
        if seen.tick < 4:
            who = replace(last.identity, group=who.launched_as)
            report = replace(report, step=replace(report.step, replica_id=None))
        named = replace(last, identity=who, outcome=replace(report, identity=who))
        return replace(seen, observations=(*others, named))

    assert not of([], rename).run(130).kinds()


def with_scheduler(seen: Snapshot) -> Snapshot:
    return replace(seen, schedulers=True)


def carried_out(lost_s: float = 8.0, *, fails: bool = False) -> Alter:
    """A scheduler ends what is out of sight so long after it was asked, or fails."""

    def end(eviction: Eviction, now_s: float) -> Eviction:
        if now_s < eviction.asked_s + lost_s:
            return replace(eviction, gone_s=None)
        if fails:
            return replace(eviction, gone_s=None, failed="not removed", state="failed")
        return replace(eviction, gone_s=None, unseen_s=now_s, left_quorum_s=now_s)

    def alter(seen: Snapshot) -> Snapshot:
        evictions = (
            end(replace(each, lost={Host("node-rg_1"): True}), seen.now_s)
            if each.group == "rg_1" else each
            for each in seen.evictions
        )  # fmt: skip
        return replace(seen, evictions=tuple(evictions))

    return alter


def test_a_lost_groups_incident_is_open_until_it_trains_again() -> None:
    script = [*lost(for_s=35.0), at(55, restart("rg_1"))]
    drive = of(script, with_scheduler, carried_out()).run(100)
    ((at_s, evict),) = drive.evicts
    assert 50 <= at_s <= 52
    assert (evict.group, evict.lost) == ("rg_1", {"node-rg_1": True})
    incident = drive.incident("dead")
    ended_s = (incident.ended_s or 0.0) - START_S
    rejoined_s = (incident.milestones.rejoined_s or 0.0) - START_S
    assert rejoined_s <= ended_s <= rejoined_s + 3
    assert [str(i.kind) for i in drive.seen.values() if i.id in drive.fired] == ["dead"]


@pytest.mark.parametrize(("fails", "dropped"), [(False, 95), (True, 95), (False, 130)])
def test_a_lost_group_that_does_not_come_back_is_never_without_an_open_incident(
    fails: bool, dropped: int
) -> None:
    drive = of(lost(), with_scheduler, carried_out(fails=fails), gone("rg_1.0", dropped))
    drive.fleet.relaunch = False
    drive.run(40)
    for _ in range(160):
        result = drive.step()
        assert any(i.open and "rg_1" in i.groups for i in result.incidents)
    incident = drive.incident("absent")
    assert dropped <= drive.fired[incident.id] <= dropped + 2
    over = "its ranks are no longer registered" if fails else "evicted: left the quorum"
    assert (drive.incident("dead").resolution or "").startswith(over)
    assert incident.remedy.startswith("To let rg_1 start elsewhere, start its launcher")


def test_an_eviction_does_not_wait_for_the_end_of_a_lost_group() -> None:
    script = [*lost(), at(45, hang("rg_2.0"))]
    drive = of(script, with_scheduler, carried_out(60.0)).run(80)
    assert drive.evicted() == ["rg_1", "rg_2"]
    assert Guard.IN_FLIGHT not in {hold.guard for _, hold in drive.holds}


def test_without_a_scheduler_nobody_is_evicted_and_a_person_reads_what_to_do() -> None:
    drive = of(lost()).run(60)
    assert not drive.evicts
    assert {hold.guard for _, hold in drive.holds} == {Guard.ALREADY_GONE}
    assert "(torchrun, systemd) on another host" in drive.incident("dead").remedy


def test_a_group_that_only_this_monitor_does_not_see_is_not_missing() -> None:
    """Its lease is over, and it trains in the quorum."""
    drive = of([], gone("rg_1.0", 40)).run(150)
    assert {str(incident.kind) for incident in drive.seen.values()} <= {"unseen"}


def test_it_is_over_when_the_group_trains_again() -> None:
    drive = of([at(20, crash("rg_1.0")), at(100, restart("rg_1"))]).run(160)
    incident = drive.incident("absent")
    assert incident.resolution == "it trains again"


def test_a_person_closes_it_and_it_stays_closed() -> None:
    drive = of([at(20, crash("rg_1.0"))], gone("rg_1.0", 40)).run(100)
    incident = drive.incident("absent")
    assert drive.pipeline.close(incident.id, "ada", "the node is returned")
    drive.run(60)
    assert drive.seen[incident.id].resolution == "closed by ada: the node is returned"
    assert [i.id for i in drive.seen.values() if i.kind == "absent"] == [incident.id]
    assert not drive.pipeline.close(incident.id, "ada", "again")
