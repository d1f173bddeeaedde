"""The witness of cgroups, against trees of both versions and against this machine's."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkeeper.worker_server.sidecar.files import levels
from lightkeeper.worker_server.sidecar.witnesses.cgroup import Cgroup
from lightkeeper.worker_server.sidecar.witnesses.witness import CannotReadError
from lightkeeper.worker_server.wire import Weight
from tests.worker_server.witnesses.trees import Case, check, follow, write

V2, CPU1, MEM1 = "sys/fs/cgroup/job", "sys/fs/cgroup/cpu/job", "sys/fs/cgroup/memory/job"
IN_V2 = {"proc/7/cgroup": "0::/job"}
IN_V1 = {"proc/7/cgroup": "4:memory:/job\n1:cpu,cpuacct:/job\n0::/"}
GIB = 1 << 30


def cpu2(throttled_us: int, limit: str = "50000 100000") -> dict[str, str | None]:
    stat = f"usage_usec 1\nnr_periods 50\nnr_throttled 50\nthrottled_usec {throttled_us}"
    return {f"{V2}/cpu.max": limit, f"{V2}/cpu.stat": stat}


def cpu1(throttled_ns: int, quota: int = 50_000) -> dict[str, str | None]:
    return {
        f"{CPU1}/cpu.cfs_quota_us": str(quota),
        f"{CPU1}/cpu.cfs_period_us": "100000",
        f"{CPU1}/cpu.stat": f"nr_periods 1\nnr_throttled 1\nthrottled_time {throttled_ns}",
    }


def mem2(
    *, used: float, file: float = 0, met: int = 0, kills: int = 0, at: str = V2
) -> dict[str, str | None]:
    return {
        f"{at}/memory.max": str(GIB),
        f"{at}/memory.current": str(int(used * GIB)),
        f"{at}/memory.stat": f"anon 1\nactive_file {int(file * GIB)}\ninactive_file 0",
        f"{at}/memory.events": f"low 0\nhigh 0\nmax {met}\noom 0\noom_kill {kills}",
    }


def mem1(
    *, used: float, met: int = 0, kills: int = 0, limit: int = 2 * GIB
) -> dict[str, str | None]:
    return {
        f"{MEM1}/memory.limit_in_bytes": str(limit),
        f"{MEM1}/memory.usage_in_bytes": str(int(used * GIB)),
        f"{MEM1}/memory.failcnt": str(met),
        f"{MEM1}/memory.stat": "total_active_file 0\ntotal_inactive_file 0",
        f"{MEM1}/memory.oom_control": f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}",
    }


SLOW, ENDED = Weight.SLOW, Weight.ENDED
HALF = (SLOW, "cpu-throttled", "/job is limited to 0.5 cores, and did not get 50% of")
CASES = [
    Case("v2: half a core", [IN_V2 | cpu2(9_000_000), cpu2(11_500_000)], [HALF], (7,)),
    Case("v1: half a core", [IN_V1 | cpu1(0), cpu1(2_500_000_000)], [HALF], (7,)),
    Case("v2: throttled a bit", [IN_V2 | cpu2(0, "95000 100000"), cpu2(222_281, "95000 100000")]),
    Case("v2: 0.9 cores", [IN_V2 | cpu2(0, "90000 100000"), cpu2(468_990, "90000 100000")]),
    Case("v2: throttled before", [IN_V2 | cpu2(80_000_000), cpu2(80_000_000)]),
    Case("v2: no limit", [IN_V2 | cpu2(0, "max 100000"), cpu2(0, "max 100000")]),
    Case("v1: no limit", [IN_V1 | cpu1(0, -1), cpu1(0, -1)]),
    Case("v2: counter set back", [IN_V2 | cpu2(9_000_000), cpu2(0)]),
    Case(
        "v2: the limit is above",
        [
            {"proc/7/cgroup": "0::/job/in", f"{V2}/in/cpu.stat": "throttled_usec 0"} | cpu2(0),
            cpu2(2_500_000),
        ],
        [HALF],
    ),
    Case(
        "container: its own part of the tree",
        [
            {
                "proc/7/cgroup": "0::/kubepods/pod1",
                "sys/fs/cgroup/cpu.max": "200000 100000",
                "sys/fs/cgroup/cpu.stat": "throttled_usec 0",
            },
            {"sys/fs/cgroup/cpu.stat": "throttled_usec 10000000"},
        ],
        [(SLOW, "cpu-throttled", "cgroup / is limited to 2 cores, and did not get 50%")],
    ),
    Case(
        "two ranks of one cgroup",
        [IN_V2 | {"proc/8/cgroup": "0::/job"} | cpu2(0), cpu2(2_500_000)],
        [HALF], (7, 8), ranks=(7, 8),
    ),
    Case("v2: memory full", [IN_V2 | mem2(used=0.99), mem2(used=0.99, met=40)],
         [(SLOW, "memory-limit", "/job fills 99% of its 1 GiB")], (7,)),
    Case("v2: the high mark",
         [IN_V2 | mem2(used=0.99) | {f"{V2}/memory.high": str(GIB), f"{V2}/memory.max": "max"},
          {f"{V2}/memory.events": "high 7\nmax 0"}],
         [(SLOW, "memory-limit", "/job fills 99% of its 1 GiB")]),
    Case("v2: full of file cache", [IN_V2 | mem2(used=1, file=0.6), mem2(used=1, file=0.6, met=9)]),
    Case("v1: memory full", [IN_V1 | mem1(used=1.96), mem1(used=1.96, met=40)],
         [(SLOW, "memory-limit", "fills 98% of its 2 GiB")]),
    Case("v1: no limit, failures", [IN_V1 | mem1(used=9, limit=9223372036854771712),
                                    mem1(used=9, met=4, limit=9223372036854771712)]),
    Case("v2: OOM kill", [IN_V2 | mem2(used=0.5, kills=3), mem2(used=0.5, kills=4)],
         [(ENDED, "oom-kill", "a process of cgroup /job; /job is limited to 1 GiB")], (7,)),
    Case("v1: OOM kill", [IN_V1 | mem1(used=1), mem1(used=1, kills=1)],
         [(ENDED, "oom-kill", "a process of cgroup /job; /job is limited to 2 GiB")], (7,)),
    Case("v2: OOM kill of the only rank", [IN_V2 | mem2(used=0.5),
         mem2(used=0.1, kills=1) | {"proc/7/cgroup": None}],
         [(ENDED, "oom-kill", "")], (7,)),
    Case("v2: OOM kill by a limit above",
         [{"proc/7/cgroup": "0::/job/in", f"{V2}/in/memory.events": "oom_kill 0"} | mem2(used=0.5),
          {f"{V2}/in/memory.events": "oom_kill 1"} | mem2(used=0.5, kills=1)],
         [(ENDED, "oom-kill", "a process of cgroup /job/in; /job is limited to 1 GiB")]),
    Case("OOM kills before", [IN_V2 | mem2(used=0.5, kills=3), mem2(used=0.5, kills=3)]),
    Case("no rank", [IN_V2, {}], ranks=()),
    Case("no counters at all", [IN_V2, {}]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_cgroup_says(case: Case, tmp_path: Path) -> None:
    check(follow(Cgroup(tmp_path), tmp_path, case), case)


def test_a_rank_that_has_ended_is_no_reason(tmp_path: Path) -> None:
    assert Cgroup(tmp_path).look((7,), 1.0) == []


def test_without_the_ranks_files_it_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "proc/7/cgroup").mkdir(parents=True)
    with pytest.raises(CannotReadError, match="7/cgroup: Is a directory"):
        Cgroup(tmp_path).look((7,), 1.0)


def test_a_rank_in_another_container_cannot_be_judged_by_our_own_limits(tmp_path: Path) -> None:
    write(tmp_path, {"proc/7/cgroup": "0::/../other"} | cpu2(0))
    with pytest.raises(CannotReadError, match="a cgroup of another container"):
        Cgroup(tmp_path).look((7,), 1.0)


def test_levels_of_a_hybrid_host(tmp_path: Path) -> None:
    write(tmp_path, {
        "proc/7/cgroup": "4:memory:/a/b\n0::/c",
        "sys/fs/cgroup/memory/a/b/x": "", "sys/fs/cgroup/unified/c/x": "",
    })  # fmt: skip
    top, lines = tmp_path / "sys/fs/cgroup", (tmp_path / "proc/7/cgroup").read_text()
    assert [level.name for level in levels(top, lines, "memory")] == ["/a/b", "/a", "/"]
    assert [level.name for level in levels(top, lines, "cpu")] == ["/c", "/"]


def test_what_was_bad_is_told_for_ten_minutes(tmp_path: Path) -> None:
    witness = Cgroup(tmp_path)
    follow(witness, tmp_path, CASES[0])
    write(tmp_path, cpu2(14_000_000))
    (row,) = witness.look((7,), 1010.0)
    assert (row.age_s, row.for_s, row.count) == (0.0, 5.0, 1)
    (row,) = witness.look((7,), 1070.0)
    assert (row.age_s, row.for_s) == (60.0, 65.0)
    write(tmp_path, cpu2(99_000_000))  # anew, after a pause
    (row,) = witness.look((7,), 1075.0)
    assert (row.age_s, row.for_s, row.count) == (0.0, 0.0, 2)
    assert witness.look((7,), 1700.0) == []
