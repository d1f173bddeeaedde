"""The monitor's heap in pages of 2 MiB: objects only, and what the system refuses is left alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lightkeeper.monitor.service import _heap, use_large_pages

MIB = 1 << 20
MAPS = """\
00400000-00a00000 r-xp 00000000 fe:00 123                        /usr/bin/python3.11
01100000-01900000 rw-p 00000000 00:00 0                          [heap]
20000000-20100000 rw-p 00000000 00:00 0
30000000-30001000 ---p 00000000 00:00 0
30001000-30801000 rw-p 00000000 00:00 0
40000000-40900000 rw-p 00000000 00:00 0
50000000-50001000 ---p 00000000 00:00 0
60000000-60800000 rw-p 00000000 00:00 0
70000000-70800000 rw-s 00000000 00:01 77                         /memfd:lightkeeper (deleted)
80000000-80800000 rw-p 00000000 fe:00 99                         /usr/lib/libtorch.so
7ffd00000000-7ffd00800000 rw-p 00000000 00:00 0                  [stack]
"""


def test_whole_large_pages_of_the_heap_and_no_stack_or_file() -> None:
    assert list(_heap(MAPS)) == [
        (0x1200000, 6 * MIB),
        (0x40000000, 8 * MIB),
        (0x60000000, 8 * MIB),  # what was guarded lies elsewhere
    ]


ASKS = """
import re
from pathlib import Path
from lightkeeper.monitor.service import use_large_pages

def large():
    return int(re.search(r"AnonHugePages: +(\\d+)", Path("/proc/self/smaps_rollup").read_text())[1])

held = [[float(n), str(n)] for n in range(300_000)]
before = large()
use_large_pages()
print(before, large(), held[-1])
"""


@pytest.mark.integration
def test_memory_moves_into_large_pages_and_keeps_its_contents() -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    release = tuple(int(part) for part in re.findall(r"\d+", Path("/proc/version").read_text())[:2])
    if not setting.exists() or "[never]" in setting.read_text() or release < (6, 1):
        pytest.skip("this kernel moves no memory into large pages when it is asked")
    asked = subprocess.run([sys.executable, "-c", ASKS], capture_output=True, text=True, check=True)
    before, after, *rest = asked.stdout.split(maxsplit=2)
    assert rest == ["[299999.0, '299999']\n"]
    assert int(after) >= int(before)
    assert int(after) > 4 * 1024


def test_a_system_without_any_of_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", gone)
    use_large_pages()
