"""Observe mode on a real fleet: it goes on as if nobody looked, and the record is full.

Two fleets of one seed, three groups each, with gate and scheduler; at step 25 one rank hangs. One
of them has a monitor with `--observe` beside it, and everything that this monitor could act by.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchft")

from tests.integration.observed.fleet import HANG, SICK, Two, both
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
RANKS = ("rg_0.0", "rg_1.0", "rg_2.0")
SERVERS = {"lighthouse", "gate", "scheduler", *RANKS}
AFTER = 6
"""Commits without the sick group that are waited for."""
ENDS_OR_STARTS = ("os.kill", "signal.", "subprocess.", "os.posix_spawn", "os.fork", "os.exec",
                  "os.system", "pty.")  # fmt: skip


@pytest.fixture(scope="module")
def over(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Two, dict[str, Any]]]:
    """Both fleets after the fault, still there, and the monitor's incident."""
    with ExitStack() as stack:
        two = both(tmp_path_factory.mktemp("observe"), stack)
        pair = (two.observed, two.alone)
        client = two.observed.client()
        for fleet in pair:
            fleet.ready()
        wait_for(
            lambda: all(two.recorder.asked.get(server) for server in SERVERS - {"scheduler"}),
            within_s=30, what="the monitor looks at all there is",
        )  # fmt: skip
        for fleet in pair:
            fleet.begin()
        for fleet in pair:
            wait_for(
                lambda side=fleet: side.check() or min(side.after()) >= AFTER,
                within_s=120, what=f"{fleet.folder.name}: the others commit without {SICK}",
            )  # fmt: skip
        incident = wait_for(lambda: record(client), within_s=30, what="the record, with evidence")
        yield two, incident


def record(client: Any) -> dict[str, Any] | None:
    """The incident, once it says what would have been done and its evidence is written."""
    for incident in client.incidents():
        would = any(said["action"] == "would_evict" for said in incident["decisions"])
        if incident["kind"] == "not_entered" and would and incident["bundle"]:
            return incident
    return None


def test_nothing_but_gets_reaches_any_part_of_the_fleet(over: tuple[Two, Any]) -> None:
    two, _ = over
    asked = two.recorder.asked
    assert set(asked) == SERVERS
    assert {line.split()[0] for lines in asked.values() for line in lines} == {"GET"}
    assert (asked["scheduler"], two.receiver.requests) == ([], [])
    for rank in RANKS:  # looked at all the time, and asked for evidence
        assert asked[rank].count("GET /v1/state") >= 5
        assert asked[rank].count("GET /v1/stacks") == 1


def test_the_monitor_comes_to_the_fleet_in_no_other_way(over: tuple[Two, Any]) -> None:
    """By the interpreter's own account: whom it connects to, what it writes, starts and ends."""
    two, _ = over
    own, seen = two.observed.keeper_folder, list(two.observed.audit())
    ports = {words[1] for event, *words in seen if event == "socket.connect"}
    assert ports
    assert ports <= two.recorder.ports()
    assert not [event for event in seen if event[0].startswith(ENDS_OR_STARTS)]
    assert not [event for event in seen if event[0] in ("socket.sendto", "socket.sendmsg")]
    written = [
        Path(word)
        for event, *words in seen
        if event == "open" or (event.startswith(("os.", "shutil.")) and "env" not in event)
        for word in words
        if isinstance(word, str) and word.startswith("/")
    ]
    written += [Path(words[0]) for event, *words in seen if event == "sqlite3.connect"]
    assert written
    assert [path for path in written if not path.is_relative_to(own)] == []
    assert two.observed.files() == two.alone.files()


def test_the_record_is_full(over: tuple[Two, Any]) -> None:
    two, incident = over
    (row,) = [decision for decision in incident["decisions"] if decision["action"] == "would_evict"]
    assert (row["guard"], row["reason"]) == ("observe", "observe mode: would evict rg_1")
    assert "start it without --observe" in row["release"]
    assert (row["would"]["group"], row["would"]["quarantine"]) == ("rg_1", [])
    assert incident["culprits"] == [SICK]
    assert incident["confidence"] in ("certain", "likely")  # once the others went on: likely
    assert incident["account"]["outcome"] == "observed"
    assert incident["milestones"]["evict_asked_s"] is None
    (bundle,) = (two.observed.keeper_folder / "monitor-evidence").glob("*.zip")
    with zipfile.ZipFile(bundle) as held:
        stacks = [name for name in held.namelist() if name.endswith("stacks.txt")]
    assert {rank for rank in RANKS if any(rank in name for name in stacks)} == set(RANKS)


def test_training_goes_on_byte_by_byte_as_without_a_monitor(over: tuple[Two, Any]) -> None:
    two, _ = over
    for rank in RANKS:
        before, alone = (steps_until(fleet.told(rank)) for fleet in (two.observed, two.alone))
        assert len(before) == 1 + 2 * HANG["step"]  # started; a step and the hash of all weights
        assert before == alone
        late, alone = (commits_after(fleet.told(rank)) for fleet in (two.observed, two.alone))
        both_made = min(len(late), len(alone))
        assert both_made >= (0 if rank == SICK else 2 * AFTER)
        assert late[:both_made] == alone[:both_made]


def test_every_process_meets_the_fate_that_it_meets_without_a_monitor(
    over: tuple[Two, Any],
) -> None:
    two, _ = over
    fates = two.observed.fates()
    assert fates == two.alone.fates()
    assert fates == dict.fromkeys(RANKS, "runs, its launcher: ['started']")


def steps_until(lines: list[str]) -> list[str]:
    """Status lines up to the fault."""
    return lines[: 1 + 2 * HANG["step"]]


def commits_after(lines: list[str]) -> list[str]:
    """Those of commits after it: how often an attempt fails before is a matter of timing."""
    return [
        line for line in lines[1 + 2 * HANG["step"] :] if json.loads(line).get("committed", True)
    ]
