"""What a capture brings home, however ranks behave, and who waits for it how long."""

from __future__ import annotations

import json
import os
import re
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightkeeper.monitor.act import bundles as bundle
from lightkeeper.monitor.model.eviction import Eviction
from lightkeeper.monitor.model.incident import Incident, State
from lightkeeper.monitor.model.names import GroupName, IncidentId, RankName, ReplicaId
from lightkeeper.monitor.model.observation import LighthouseAway, Observation, Snapshot
from lightkeeper.monitor.model.verdict import Kind
from lightkeeper.worker_server.wire import to_json
from tests.changed import replace
from tests.http_server import Hang
from tests.monitor.act.evidence.scene import Bench, rank_of
from tests.monitor.decided import decided, to_evict
from tests.monitor.fakes import FakeFleet, FakeRank, identity, page, wait_until
from tests.monitor.samples import incident

EVERY = ["state", "flight_recorder", "stacks", "last_words", "steps", "network", "machine"]


def fleet_of(http: FakeFleet, groups: int = 3, size: int = 1) -> Snapshot:
    for group in range(groups):
        for rank in range(size):
            http.add(f"rg_{group}", rank, world_size=size)
    return snapshot(http)


def snapshot(http: FakeFleet, now_s: float = 1_000_000.0) -> Snapshot:
    seen = tuple(
        Observation(rank.identity, rank.url, rank.report(), 0.01)
        for _, rank in sorted(http.ranks.items())
    )
    return Snapshot(now_s, 7, 0.0, seen, LighthouseAway("none configured"))


@pytest.fixture
def seen(http: FakeFleet) -> Snapshot:
    """Three groups of a rank."""
    return fleet_of(http)


@pytest.fixture
def bench(make) -> Bench:
    return make()


def evict(name: str = "inc-1", group: str = "rg_1") -> Eviction:
    return to_evict(IncidentId(name), GroupName(group), ReplicaId(f"{group}:uuid"), (), "hung")


def test_everything_of_everybody_concerned_is_in_the_zip(bench, http, seen) -> None:
    rank_of(http, "rg_1.0").guarded = True
    bench.take(seen, incident())
    bundle = bench.bundle("inc-1", "firing")
    assert bundle.moments["firing"]["ranks"] == ["rg_1.0", "rg_0.0"]
    for rank in ("rg_1.0", "rg_0.0"):
        assert bundle.statuses(rank) == dict.fromkeys(EVERY, "ok")
    assert json.loads(bundle.files["firing/rg_1.0/state.json"])["identity"]["group"] == "rg_1"
    assert bundle.files["firing/rg_1.0/stacks.txt"] == b"Thread 1: train.py:10\n"
    manifest = bundle.manifest
    assert (manifest["format"], manifest["schema"], manifest["id"]) == (
        "lightkeeper-evidence", 1, "inc-1",
    )  # fmt: skip
    assert manifest["incident"]["culprits"] == ["rg_1.0"]
    part = bundle.part("rg_1.0", "stacks")
    assert (part["file"], part["error"]) == ("firing/rg_1.0/stacks.txt", None)
    assert abs(part["taken_s"] - time.time()) < 60
    assert bench.counts(moment="firing", outcome="complete")
    assert {token for _, token in rank_of(http, "rg_1.0").asked} == {"Bearer secret"}


def test_odd_names_lie_in_folders_of_their_own(bench, http) -> None:
    names = ("a b", "../../x", "ä:1", "CON")
    groups = tuple(GroupName(name) for name in names)
    odd = [replace(http.add("rg_0").identity, group=group) for group in groups]
    rank = http.add("odd")
    url, rank.identity = rank.url, odd[1]
    seen = (Observation(odd[1], url, rank.report(), 0.0),)
    bench.take(
        replace(snapshot(http), observations=seen),
        replace(incident(), culprits=(odd[1].rank,), groups=groups),
    )
    bundle = bench.bundle("inc-1", "firing")
    assert {name.rpartition("/")[0] for name in bundle.files} == {"", "firing/%..%2F..%2Fx.0"}


# -- ranks that do what they should not -----------------------------------------------------------


def answers(body: bytes, status: int = 200) -> Callable[[FakeRank], object]:
    return lambda _: (status, "application/json", body)


def hangs(_: FakeRank) -> object:
    raise Hang


ODD = {
    "dies half way": ({"raw": b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n{"}, "garbage"),
    "trickles": ({"drip": b" "}, "late"),
    "garbage": ({"answer": answers(b"<html>\xff")}, "garbage"),
    "no object": ({"answer": answers(b"[1, 2]")}, "garbage"),
    "deep JSON": ({"answer": answers(b"[" * 60_000)}, "garbage"),
    "huge number": ({"answer": answers(b"1" * 60_000)}, "garbage"),
    "endless": ({"answer": answers(b"x" * 70_000)}, "too_large"),
    "refuses": ({"answer": answers(b'{"error": "no"}', 503)}, "refused"),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_rank_costs_its_own_part_and_is_named(name: str, make, http, seen) -> None:
    options, status = ODD[name]
    waits = status == "late"
    bench: Bench = make(evidence_deadline_s=0.6 if waits else 10.0)
    for key, value in options.items():
        setattr(rank_of(http, "rg_1.0"), key, value)
    bench.take(seen, incident())
    bundle = bench.bundle("inc-1", "firing")
    part = bundle.part("rg_1.0", "state")
    assert (part["status"], part["file"], bool(part["error"])) == (status, None, True)
    assert bench.counts(moment="firing", outcome="partial")
    if not waits:  # else a busy machine may have more that is late
        assert bundle.statuses("rg_1.0") == {**dict.fromkeys(EVERY, "ok"), "state": status}
        assert bundle.statuses("rg_0.0") == dict.fromkeys(EVERY, "ok")


def test_a_rank_as_which_a_newer_process_answers_gives_no_evidence(bench, http, seen) -> None:
    rank_of(http, "rg_1.0").restart("two")
    bench.take(seen, incident())
    bundle = bench.bundle("inc-1", "firing")
    assert bundle.statuses("rg_1.0") == dict.fromkeys(EVERY, "stranger")
    assert "(two)" in bundle.part("rg_1.0", "stacks")["error"]
    assert bundle.statuses("rg_0.0") == dict.fromkeys(EVERY, "ok")


def test_a_flight_record_that_is_too_large_is_asked_for_its_unfinished_part(
    bench, http, seen, monkeypatch
) -> None:
    small = replace(bundle.KINDS[1], max_bytes=2000)
    monkeypatch.setattr("lightkeeper.monitor.act.evidence.KINDS", (bundle.KINDS[0], small))
    asked = []

    def serve(rank: FakeRank, rest: str):
        asked.append(rest)
        body = {"identity": None, "pad": "" if "active=1" in rest else "x" * 4000}

        return page(
            {**to_json(rank.report()), **body, "identity": to_json(rank.report())["identity"]}
        )

    http.serve_record = serve
    bench.take(seen, incident())
    part = bench.bundle("inc-1", "firing").part("rg_1.0", "flight_recorder")
    assert (part["status"], part["file"]) == ("cut", "firing/rg_1.0/flight_recorder.json")
    assert part["error"] == "all of it is over 2000 bytes: only what is unfinished"


def test_a_full_bundle_names_what_it_left_out(make, http, seen) -> None:
    bench: Bench = make(evidence_mib=1.0)
    rank_of(http, "rg_1.0").stacks = b"x" * 1_000_000
    rank_of(http, "rg_0.0").stacks = b"y" * 1_000_000
    bench.take(seen, incident())
    bundle = bench.bundle("inc-1", "firing")
    parts = [bundle.part(rank, "stacks") for rank in ("rg_1.0", "rg_0.0")]
    assert sorted(part["status"] for part in parts) == ["ok", "too_large"]
    (left_out,) = (part for part in parts if part["status"] == "too_large")
    assert (left_out["error"], left_out["file"]) == ("the bundle is full", None)


@pytest.mark.parametrize(
    ("kind", "ranks", "left_out"),
    [
        (Kind.NOT_ENTERED, ["rg_1.0", "rg_1.1", "rg_0.0", "rg_2.0", "rg_3.0", "rg_4.0"],
         ["rg_0.1", "rg_2.1", "rg_3.1", "rg_4.1"]),
        (Kind.STRAGGLER, ["rg_1.0", "rg_1.1", "rg_0.0", "rg_2.0", "rg_3.0", "rg_4.0"], []),
    ],
    ids=["those beyond the limit are named", "of a straggler a few"],
)  # fmt: skip
def test_the_culprits_group_comes_first_then_of_each_group_a_victim(
    kind, ranks, left_out, make, http
) -> None:
    bench: Bench = make(evidence_ranks=6)
    seen = fleet_of(http, groups=5, size=2)
    firing = incident()
    victims = tuple(RankName(f"rg_{g}.{r}") for g in (0, 2, 3, 4) for r in (0, 1))
    bench.take(seen, replace(firing, kind=kind, verdict=replace(firing.verdict, victims=victims)))
    moment = bench.bundle("inc-1", "firing").moments["firing"]
    assert (moment["ranks"], moment["left_out_ranks"]) == (ranks, left_out)
    assert bench.counts(moment="firing", outcome="partial" if left_out else "complete")
    assert bench.counted(moment="firing", outcome="partial") == bool(left_out)


WHO = identity("rg_1", 0)
KEYS = ["identity", "group", "group_rank", "world_size", "process", "dead_age_s", "torch_age_s"]
JSON = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6)
    ),
    max_leaves=12,
)


@given(st.binary(max_size=200) | JSON.map(lambda data: json.dumps(data).encode()))
def test_any_answer_is_weighed(body: bytes) -> None:
    for kind in bundle.KINDS:
        part = bundle.Part(WHO.rank, kind, bundle.PartStatus.OK, body)
        said = bundle.weigh(part, WHO)
        assert (said.body is None) == (said.status is not bundle.PartStatus.OK)
        assert said.age_s is None or said.age_s >= 0


# -- once for each incident, and again before the eviction ----------------------------------------


def test_an_eviction_right_after_firing_waits_for_the_first_moment_alone(bench, seen) -> None:
    bench.take(seen, incident())
    assert bench.evict(evict(), incident()).startswith("14 of 14 parts of 2 ranks in ")
    bundle = bench.bundle("inc-1", "firing")
    assert list(bundle.moments) == ["firing"]


def test_a_later_eviction_has_its_own_moment_beside_the_first_and_the_latest_is_kept(
    make, http, seen
) -> None:
    bench: Bench = make(evidence_fresh_s=0.0)
    bench.take(seen, incident())
    first = bench.bundle("inc-1", "firing")
    rank_of(http, "rg_1.0").step = 77
    bench.evict(evict(), incident())
    second = bench.bundle("inc-1", "firing", "eviction")
    rank_of(http, "rg_1.0").step = 78
    bench.evict(evict(), incident())
    third = wait_until(
        lambda: (b := bench.bundle("inc-1", "eviction")).moments["eviction"]["began_s"]
        > second.moments["eviction"]["began_s"] and b,
        10, "the third moment",
    )  # fmt: skip
    assert list(third.moments) == ["firing", "eviction"]
    name = "firing/rg_1.0/state.json"
    assert third.files[name] == first.files[name]
    assert json.loads(third.files["eviction/rg_1.0/state.json"])["step"]["step"] == 78
    assert third.manifest["eviction"] == {
        "group": "rg_1", "reason": "hung", "author": "lightkeeper",
    }  # fmt: skip


def test_an_incident_that_goes_on_firing_is_captured_once(make, seen) -> None:
    bench: Bench = make()
    for _ in range(5):
        bench.take(seen, incident(), incident("inc-3", state=State.PENDING))
    bench.bundle("inc-1", "firing")
    assert bench.bundles.path(IncidentId("inc-3")) is None
    bench.take(seen, incident())
    again = make()  # a monitor that starts again finds the bundle
    again.take(seen, incident())
    again.take(seen, incident("inc-2"))
    again.bundle("inc-2", "firing")
    assert bench.counts(moment="firing", outcome="complete")
    assert again.counts(moment="firing", outcome="complete")


def test_an_eviction_by_hand_is_captured_without_an_incident(bench, seen) -> None:
    bench.take(seen)
    bench.evict(evict("by_hand-rg_1-3"))
    bundle = bench.bundle("by_hand-rg_1-3", "eviction")
    assert bundle.manifest["incident"] is None
    assert bundle.statuses("rg_1.0", "eviction") == dict.fromkeys(EVERY, "ok")


def test_the_story_in_the_bundle_ends_with_the_incident(bench, seen) -> None:
    bench.take(seen, incident())
    bench.bundle("inc-1", "firing")
    over = replace(incident(state=State.RESOLVED), resolution="recovered by itself")
    bench.take(seen, over)
    wait_until(
        lambda: bench.bundle("inc-1").manifest["incident"]["state"] == "resolved", 10, "the end"
    )
    assert bench.bundle("inc-1").statuses("rg_1.0") == dict.fromkeys(EVERY, "ok")


# -- nobody waits too long ------------------------------------------------------------------------


def test_the_tick_waits_for_nobody_and_the_eviction_for_the_deadline_at_most(
    make, http, seen
) -> None:
    bench: Bench = make(evidence_deadline_s=0.6)
    for rank in http.ranks.values():
        rank.answer, rank.stacks = hangs, None
    began = time.monotonic()
    bench.take(seen, incident())
    asked_s = time.monotonic() - began
    said = bench.evict(evict(), incident())
    waited_s = time.monotonic() - began
    assert asked_s < 0.5 < waited_s < 15  # who hangs does for 30 s
    assert re.fullmatch(r"\d+ of 14 parts of 2 ranks in \d\.\d s|not there within .*", said)
    assert bench.bundle("inc-1", "firing").statuses("rg_1.0")["stacks"] == "late"


def test_a_disk_that_hangs_holds_up_no_eviction_and_is_told(bench, seen, monkeypatch) -> None:
    monkeypatch.setattr("lightkeeper.monitor.act.evidence.STUCK_S", 0.2)
    gate = threading.Event()

    def stuck(path: Path):
        gate.wait(20)
        return path.open("w+b")

    bench.bundles._opener = stuck
    try:
        began = time.monotonic()
        bench.take(seen, incident())
        assert bench.evict(evict(), incident()).startswith("14 of 14 parts")
        assert time.monotonic() - began < 15  # and not the 20 s of the disk
        bench.take(seen, incident("inc-2"))  # its lane is stuck; an eviction's is not yet
        said = bench.evict(evict("inc-3", "rg_2"), incident("inc-3"))
        assert said.startswith(("14 of 14", "21 of 21"))
        wait_until(bench.evidence.troubles, 10, "it is told")
        where = bench.bundles.folder
        assert bench.evidence.troubles() == (f"no evidence is kept: {where} does not answer",)
    finally:
        gate.set()
    wait_until(lambda: not bench.evidence.troubles(), 10, "it answers again")


def test_a_full_disk_is_a_trouble_until_it_is_not_full_any_more(bench, seen) -> None:

    def full(_: Path) -> NoReturn:
        raise OSError(28, "No space left on device")

    good, bench.bundles._opener = bench.bundles._opener, full
    bench.take(seen, incident())
    assert bench.evict(evict(), incident()).startswith("14 of 14 parts")
    wait_until(bench.evidence.troubles, 10, "the trouble")
    assert bench.evidence.troubles() == ("evidence of inc-1 is not kept: No space left on device",)
    assert bench.counted(moment="firing", outcome="unwritten") == 1
    bench.bundles._opener = good
    bench.take(seen, incident("inc-2"))
    bench.bundle("inc-2", "firing")
    wait_until(lambda: not bench.evidence.troubles(), 10, "the trouble is over")


def test_a_folder_that_cannot_be_made_is_a_trouble_and_is_tried_again(make, seen, tmp_path) -> None:
    (tmp_path / "file").write_text("in the way")
    bench: Bench = make(tmp_path / "file" / "evidence")
    (said,) = bench.evidence.troubles()
    assert said.startswith(f"no evidence can be kept in {tmp_path}/file/evidence: ")
    bench.take(seen, incident())
    assert bench.evict(evict(), incident()).startswith("14 of 14 parts")
    (tmp_path / "file").unlink()
    bench.take(seen, incident("inc-2"))
    bench.bundle("inc-2", "firing")
    wait_until(lambda: not bench.evidence.troubles(), 10, "the trouble is over")


def test_a_damaged_bundle_is_replaced_and_that_is_said(make, seen) -> None:
    bench: Bench = make(evidence_fresh_s=0.0)
    bench.take(seen, incident())
    path = bench.bundle("inc-1", "firing").path
    path.write_bytes(path.read_bytes()[:300])
    bench.evict(evict(), incident())

    def whole():
        try:
            return bench.bundle("inc-1", "eviction")
        except (OSError, zipfile.BadZipFile, AssertionError):
            return None

    bundle = wait_until(whole, 10, "a whole bundle")
    assert list(bundle.moments) == ["eviction"]
    (said,) = bundle.manifest["problems"]
    assert said.startswith("the earlier bundle was damaged and is left out: ")


def test_bundles_grow_too_old_while_nothing_happens(make, seen) -> None:
    bench: Bench = make(evidence_days=1.0)
    bench.take(replace(seen, now_s=time.time()), incident(), incident("inc-2"))
    paths = [bench.bundle(name, "firing").path for name in ("inc-1", "inc-2")]
    os.utime(paths[0], (1e9, 1e9))
    bench.take(replace(seen, now_s=time.time() + 3700))
    wait_until(lambda: bench.bundles.path(IncidentId("inc-1")) is None, 10, "it is removed")
    assert [path.exists() for path in paths] == [False, True]


def test_switched_off_it_takes_and_makes_nothing(make, seen) -> None:
    bench: Bench = make(evidence_count=0)
    bench.take(seen, incident())
    assert bench.evidence.before_eviction(decided(evict(), (), 0.0), incident()) is None
    assert not bench.bundles.folder.exists()


def test_more_incidents_than_there_is_room_for_are_counted(make, http) -> None:
    bench: Bench = make(evidence_deadline_s=0.3)
    seen = fleet_of(http, groups=1)
    rank_of(http, "rg_0.0").answer = hangs
    many = [several(n) for n in range(80)]
    bench.take(seen, *many)
    assert bench.counted(moment="firing", outcome="dropped") in (15, 16)


def several(number: int) -> Incident:
    return replace(incident(f"inc-{number}"), groups=(GroupName("rg_0"),))
