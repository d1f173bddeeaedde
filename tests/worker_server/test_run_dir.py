"""Where a rank's files go, and where instead when they cannot go there."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path

import pytest

from lightkeeper.worker_server import doctor, run_dir
from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.rank.page.writer import PageWriter
from lightkeeper.worker_server.run_dir import (
    RankFiles,
    RunDirError,
    candidates,
    check_room,
    first_usable,
    hold,
    pid_namespace,
    sweep,
)
from lightkeeper.worker_server.wire import GroupName, Host, Identity

NAME = f"lightkeeper-{os.getuid()}"


def test_the_named_place_comes_first_then_memory_then_the_session_then_temporary_files():
    named = {"LIGHTKEEPER_RUN_DIR": "/a/b", "XDG_RUNTIME_DIR": "/run/user/7", "TMPDIR": "/scratch"}
    assert candidates(named)[:5] == (
        Path("/a/b"), Path("/dev/shm") / NAME, Path("/run/user/7") / NAME, Path("/scratch") / NAME,
        Path("/tmp") / NAME,
    )  # fmt: skip
    assert candidates({"LIGHTKEEPER_RUN_DIR": "here"})[0] == Path.cwd() / "here"
    assert candidates({"TMPDIR": "/tmp"})[:2] == (Path("/dev/shm") / NAME, Path("/tmp") / NAME)


class Uses:
    """What is done with a place: here it may fail, by name."""

    def __init__(self, **troubles):
        self.troubles = troubles
        self.said = []

    def use(self, place):
        if place.name in self.troubles:
            raise OSError(self.troubles[place.name], os.strerror(self.troubles[place.name]))
        return place.name

    def go(self, *places):
        return first_usable(places, self.use, self.said.append)


def test_the_first_choice_is_taken_without_a_word(tmp_path):
    uses = Uses()
    assert (uses.go(tmp_path / "a", tmp_path / "b"), uses.said) == ("a", [])
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    "number", [errno.EROFS, errno.ENOSPC, errno.EACCES], ids=errno.errorcode.get
)
def test_where_the_first_choice_fails_the_next_is_taken_and_said_once(tmp_path, number):
    uses = Uses(a=number)
    assert uses.go(tmp_path / "a", tmp_path / "b", tmp_path / "c") == "b"
    assert uses.said == [f"lightkeeper uses {tmp_path}/b, for {tmp_path}/a: {os.strerror(number)}"]


def test_a_place_that_others_may_enter_is_passed_over(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    uses = Uses()
    assert uses.go(tmp_path / "open", tmp_path / "b") == "b"
    assert "open to others" in uses.said[0]


def test_a_link_to_a_place_is_passed_over(tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    uses = Uses()
    assert uses.go(tmp_path / "link", tmp_path / "b") == "b"


def test_with_no_place_left_the_reasons_are_all_there(tmp_path):
    uses = Uses(a=errno.EROFS, b=errno.ENOSPC)
    with pytest.raises(RunDirError, match=r"a: Read-only file system; .*b: No space left"):
        uses.go(tmp_path / "a", tmp_path / "b")
    assert uses.said == []


def test_a_failure_that_is_not_the_places_fault_is_not_tried_elsewhere(tmp_path):
    def use(place):
        raise OSError("identity takes 5000 bytes")

    with pytest.raises(OSError, match="identity takes"):
        first_usable((tmp_path / "a", tmp_path / "b"), use, print)
    assert not (tmp_path / "b").exists()


def test_room_for_the_sidecars_files_is_looked_for(tmp_path):
    check_room(tmp_path)


@pytest.fixture
def gone(tmp_path):
    """The page of a rank that nobody sees from here, with no sidecar that anybody sees."""
    who = Identity("job", GroupName("rg_1"), 0, 1, Host("h"), 2**22 - 1, "abc")
    files = RankFiles.of(tmp_path, who.rank, who.incarnation)
    page = PageWriter.create(files.page, who, 1)
    page._words[layout.W_BEAT] = time.monotonic_ns() - 10**12
    files.write_endpoint({"sidecar_pid": 2**22 - 1, "sidecar_ticks": 1,
                          "pid_namespace": pid_namespace()})  # fmt: skip
    return files, page


def test_what_a_dead_rank_left_is_swept(gone):
    files, _ = gone
    assert sweep(files.page.parent) == 1
    assert not files.page.exists()


def test_the_newest_logs_of_dead_ranks_are_kept_and_all_logs_of_living_ranks(gone):
    files, _ = gone
    fd = hold(files.page)
    folder = files.page.parent
    old = time.time() - 2 * 86_400
    for log in (files.log, files.log.with_name(f"{files.log.name}.1")):
        log.touch()
        os.utime(log, (old, old))
    for number in range(40):
        dead = folder / f"rg_0.{number}-dead.log"
        dead.touch()
        os.utime(dead, (time.time() - number, time.time() - number))
    (folder / "rg_0.99-dead.log.1").touch()
    os.utime(folder / "rg_0.99-dead.log.1", (old, old))
    sweep(folder)
    os.close(fd)
    left = {kept.name for kept in folder.glob("*.log*")}
    assert left == {files.log.name, f"{files.log.name}.1"} | {
        f"rg_0.{number}-dead.log" for number in range(32)
    }


def test_a_page_that_a_sidecar_holds_is_not_swept_wherever_it_runs(gone):
    files, _ = gone
    fd = hold(files.page)
    assert sweep(files.page.parent) == 0
    os.close(fd)
    assert sweep(files.page.parent) == 1


def test_a_rank_of_another_container_is_swept_only_when_it_has_not_beaten_for_long(gone):
    files, page = gone
    files.write_endpoint({"sidecar_pid": 2**22 - 1, "sidecar_ticks": 1, "pid_namespace": 1})
    page.beat()
    assert sweep(files.page.parent) == 0
    assert sweep(files.page.parent, time.monotonic_ns() + 601 * 10**9) == 1


def test_a_beating_rank_whose_sidecar_has_not_come_is_not_swept(gone):
    files, page = gone
    files.endpoint.unlink()
    os.utime(files.page, (1, 1))
    page.beat()
    assert sweep(files.page.parent) == 0
    assert sweep(files.page.parent, time.monotonic_ns() + 601 * 10**9) == 1


@pytest.fixture
def squatted(tmp_path, monkeypatch):
    """Every known place is a file of somebody's; the folder of memory."""
    memory = tmp_path / "shm"
    memory.mkdir()
    monkeypatch.setattr(run_dir, "_SHM", memory)
    places = candidates({"TMPDIR": str(memory / "tmp"), "LIGHTKEEPER_RUN_DIR": str(memory / "r")})
    (memory / "tmp").mkdir()
    for place in (memory / NAME, memory / "r", memory / "tmp" / NAME):
        place.touch()
    return memory, places


def test_who_finds_all_known_places_taken_has_one_that_nobody_could_guess(squatted):
    memory, places = squatted
    used = [place for place in places if place.parent in (memory, memory / "tmp")]
    first = first_usable(tuple(used), Path, lambda _: None)
    assert first.parent == memory
    assert len(first.name.removeprefix(f"{NAME}-")) == 16
    assert first.stat().st_mode & 0o777 == 0o700
    assert candidates({})[-1] == first, "later ranks, and doctor, use the same"
    assert places[-1] == first


def test_no_place_of_others_is_taken_for_an_unguessable_one(squatted):
    memory, _ = squatted
    (memory / f"{NAME}-0open").mkdir(mode=0o755)
    (memory / f"{NAME}-0file").touch(0o600)
    (memory / f"{NAME}-0link").symlink_to(memory)
    last = candidates({})[-1]
    assert not last.exists()
    if os.geteuid() == 0:
        (memory / f"{NAME}-0others").mkdir(mode=0o700)
        os.chown(memory / f"{NAME}-0others", 12345, 12345)
        assert not candidates({})[-1].exists()
    (memory / f"{NAME}-ours").mkdir(mode=0o700)
    assert candidates({})[-1] == memory / f"{NAME}-ours"
    assert candidates({})[-2] != memory / f"{NAME}-0open"


def test_doctor_finds_ranks_in_a_place_that_nobody_could_guess(squatted):
    memory, _ = squatted
    place = memory / f"{NAME}-0123456789abcdef"
    place.mkdir(mode=0o700)
    endpoint = {"rank": "rg_0.0", "url": "http://127.0.0.1:1", "pid": os.getpid()}
    (place / "rg_0.0-x.json").write_text(json.dumps(endpoint))
    assert "rg_0.0" in [rank.name for rank in doctor.ranks_here({})]
