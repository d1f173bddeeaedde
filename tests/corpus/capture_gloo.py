"""Real flight records of four gloo ranks in trouble: `python -m tests.corpus.capture_gloo OUT`.

Names of cases may follow; the others in OUT stay. OUT holds `captures.zip` and `truth.json`. Of
each case there are `ring.zip` (what the WorkerServers answer, of the dead too), `pickle.zip` and
`json.zip` (torch's own dumps, of the ranks that can be asked); these are stored and packed
together, because the ranks' records resemble each other. `dates.json` has the files' dates, which
a zip would round. Loopback only. The ranks are forked from
here, so that torch is imported once, and are ended by their pids.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
import torch._inductor  # noqa: F401  a pickle with stacks imports it: a minute for 4 ranks at once

from lightkeeper.worker_server import wire
from tests.corpus.gloo_cases import CASES, Case
from tests.corpus.gloo_ranks import WORLD, live
from tests.ports import free_port
from tests.waiting import wait_for
from tests.worker_server.ranks import TOKEN, Rank

QUIET_S = 2.0
"""The job has come to rest when no ring has changed for this long."""
ONE_DAY = (2026, 1, 1, 0, 0, 0)


def main() -> None:
    out, names = Path(sys.argv[1]), sys.argv[2:]
    signal.signal(signal.SIGCHLD, reap)
    os.environ.update(LIGHTKEEPER_TOKEN=TOKEN, LIGHTKEEPER_LINGER_S="120")
    captured: dict[str, bytes] = {}
    for case in CASES:
        if not names or case.name in names:
            with tempfile.TemporaryDirectory(prefix="lk") as folder:
                captured |= capture(case, Path(folder))
    pack(out, captured)


def reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def capture(case: Case, folder: Path) -> dict[str, bytes]:
    for name in ("run", "pickle", "json", "ring"):
        (folder / name).mkdir(mode=0o700)
    port, began = free_port(), time.monotonic()
    ranks = [Rank(start(case, rank, folder, port), folder / "run") for rank in range(WORLD)]
    try:
        for rank in ranks:
            _ = rank.endpoint  # of a rank that dies it is gone later
        at_rest(case, ranks)
        for number, rank in enumerate(ranks):
            (folder / "ring" / f"rg_0.{number}.json").write_text(answer(rank))
        (folder / "dump").touch()
        left = [n for n in range(WORLD) if n not in case.gone and alive(ranks[n])]
        wait_for(lambda: all((folder / "json" / f"rank_{n}").exists() for n in left),
                 within_s=60, what="torch's dumps")  # fmt: skip
    except AssertionError:
        for path in sorted(folder.glob("log_*")):
            print(path.name, path.read_text(), sep="\n", file=sys.stderr)
        raise
    finally:
        for rank in ranks:
            rank.end()
    print(f"{case.name}: torch's dumps of {left}, {time.monotonic() - began:.0f} s", flush=True)
    kinds = ("ring", "pickle", "json")
    dates = {
        f"{kind}/{path.name}": path.stat().st_mtime_ns
        for kind in kinds
        for path in sorted((folder / kind).iterdir())
    }
    archives = {f"{case.name}/{kind}.zip": stored(folder / kind) for kind in kinds}
    return {**archives, f"{case.name}/dates.json": json.dumps(dates).encode()}


def start(case: Case, rank: int, folder: Path, port: int) -> int:
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(folder / f"log_{rank}", os.O_WRONLY | os.O_CREAT), 2)
        try:
            live(case, rank, folder, port)
        finally:
            os._exit(1)
    return pid


def answer(rank: Rank) -> str:
    status, text = rank.ask(wire.PATH_FLIGHT_RECORDER)
    assert status == 200, text
    return text


def alive(rank: Rank) -> bool:
    return rank.state().process.alive


def at_rest(case: Case, ranks: list[Rank]) -> None:
    """Wait until nothing moves; of a case that never rests, until it has run for a while."""

    def seen() -> list[object]:
        return [[(e.group, e.seq, e.op, e.exit_age_s is None, e.error) for e in r.record().ring]
                + [alive(r)] for r in ranks]  # fmt: skip

    wait_for(lambda: all(r.record().torch for r in ranks), within_s=60, what="torch's records")
    (ranks[0].run_dir.parent / "go").touch()
    last, since = seen(), time.monotonic()
    limit = time.monotonic() + 60
    while time.monotonic() - since < QUIET_S + case.timeout_s % 600:
        time.sleep(0.1)
        now = seen()
        if now != last and (case.settles and time.monotonic() < limit):
            last, since = now, time.monotonic()


def stored(folder: Path) -> bytes:
    """A zip of a folder's files, not compressed."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as bundle:
        for path in sorted(folder.iterdir()):
            bundle.writestr(zipfile.ZipInfo(path.name, ONE_DAY), path.read_bytes())
    return data.getvalue()


def pack(out: Path, captured: dict[str, bytes]) -> None:
    """Put the captures of this run in the place of older ones; the truths of all beside them."""
    path, every = out / "captures.zip", {}
    if path.exists():
        with zipfile.ZipFile(path) as bundle:
            every = {name: bundle.read(name) for name in bundle.namelist()}
    every |= captured
    out.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as bundle:
        for name in sorted(name for name in every if name.split("/")[0] in {c.name for c in CASES}):
            info = zipfile.ZipInfo(name, ONE_DAY)
            bundle.writestr(info, every[name], zipfile.ZIP_LZMA)
    (out / "truth.json").write_text(json.dumps(truths(), indent=1) + "\n")


def truths() -> dict[str, Any]:
    return {
        case.name: {
            "what": case.what, "program": case.program,
            "ring": case.ring.as_json(), "pickle": case.torch.as_json(),
            "json": (case.json or case.torch).as_json(),
        }
        for case in CASES
    }  # fmt: skip


if __name__ == "__main__":
    main()
