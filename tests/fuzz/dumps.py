"""Files and answers as nobody meant them, all the way to a verdict: by a seed, and checked.

Reading a case may end in a verdict or in the documented error, within some seconds and some memory.
"""

from __future__ import annotations

import json
import pickle
import random
import resource
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

from lightkeeper.monitor.records import dump
from lightkeeper.monitor.records import ring as ring_rows
from lightkeeper.monitor.records.analyse import analyse
from lightkeeper.monitor.records.dump import Record, assemble
from lightkeeper.monitor.records.files import TooMuchError, load_job
from lightkeeper.monitor.records.ring import bounded, from_answers, newest_collectives
from lightkeeper.monitor.records.safe_pickle import FlightRecordError
from lightkeeper.worker_server.wire import WireError, parse_flight_record
from tests.fuzz import records
from tests.fuzz.games import spoilt
from tests.monitor.records.answers import answer, call
from tests.monitor.records.dumps import CREATED, config, entry, nccl, pending, send, status

SLOW_S = 10.0
LARGE_MIB = 600
_ALLOWED = (FlightRecordError, WireError, TooMuchError)


def play(rng: random.Random) -> list[str]:
    """What is wrong with how a case is read."""
    case = rng.choice(CASES)
    began_s, before = time.process_time(), _peak_mib()
    try:
        case(rng)
    except _ALLOWED:
        pass
    except Exception as exc:
        exc.add_note(case.__name__)
        raise
    took_s, grown = time.process_time() - began_s, _peak_mib() - before
    findings = [f"{case.__name__}: {took_s:.1f} s"] if took_s > SLOW_S else []
    return findings + ([f"{case.__name__}: {grown} MiB more"] if grown > LARGE_MIB else [])


def _peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


# -- what a file may hold ---------------------------------------------------------------------


def some_bytes(rng: random.Random) -> None:
    """A record's bytes, here and there others."""
    records.read_bytes(spoilt(rng, rng.choice(list(records.seeds()))))


def values(rng: random.Random) -> None:
    """A record with odd values at some places."""
    records.read_mutated(rng.randbytes(rng.randrange(3, 12)))


def deep(rng: random.Random) -> None:
    """One thing within the other, or many beside each other; numbers without an end."""
    depth = rng.choice((10, 900, 5_000, 200_000))
    inner = rng.choice(('"x"', "1" * rng.choice((300, 5_000)), "NaN", "1e999", "-Infinity", "[]"))
    left, right = rng.choice((("[", "]"), ('{"entries":', "}"), ('[[],{"a":', "}]")))
    text = left * depth + inner + right * depth
    if rng.random() < 0.5:
        key = rng.choice(("entries", "pg_config", "pg_status", "frames", "version"))
        text = f'{{"version": "2.10", "{key}": {text}}}'
    dump.read_dump(dump.decode(text.encode()))


def program(rng: random.Random) -> None:
    """A pickle of instructions by chance, most of them harmless ones."""
    ops = [b"}", b"]", b"(", b")", b"\x94", b"N", b"K\x01", b"q\x00", b"h\x00", b"a", b"s", b"u",
           b"e", b"0", b"\x85", b"\x86", b"j\x00\x00\x00\x00", b"r\xff\xff\xff\x7f", b"l", b"t",
           b"X\x01\x00\x00\x00a", b"\x8b\xff\xff\xff\x7f", b"\x8a\x08aaaaaaaa", b"c"]  # fmt: skip
    body = b"".join(rng.choices(ops, k=rng.choice((5, 50, 5_000))))
    if rng.random() < 0.3:
        body = rng.choice((b"}", b"]", b")")) * rng.choice((1 << 10, 1 << 20))
    dump.read_dump(dump.decode(b"\x80\x02" + body + b"."))


def zipped(rng: random.Random) -> None:
    """A zip of records, and of what else there is; spoilt."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "all.zip")
        how = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
        with zipfile.ZipFile(path, "w", how) as bundle:
            for number, seed in enumerate(records.seeds()):
                name = rng.choice((f"rank_{number}", f"{number}.json", "rank_0", "../rank_1"))
                if name not in bundle.namelist():
                    bundle.writestr(name, seed)
            if rng.random() < 0.3:
                bundle.writestr("manifest.json", json.dumps(_manifest(rng)))
        if rng.random() < 0.8:
            path.write_bytes(spoilt(rng, path.read_bytes()))
        analyse(load_job([path], workers=1))


def _manifest(rng: random.Random) -> Any:
    part = {"rank": rng.choice(("rg_0.0", 3, "")), "part": "flight_recorder",
            "file": rng.choice(("rank_0", None, 5)), "taken_s": rng.choice((1, 1e400))}  # fmt: skip
    moment = {"moment": "m", "began_s": rng.choice((1, -1, None)), "parts": [part, 7]}
    return {"format": "lightkeeper-evidence", "moments": rng.choice(([moment], [None], 3))}


# -- what a job's ranks may have called --------------------------------------------------------


def job(rng: random.Random) -> None:
    """Ranks whose calls have little to do with each other, or nearly all."""
    ranks, groups = rng.choice((2, 3, 8, 40)), rng.choice((1, 2, 30, 1_000))
    size = max(1, rng.choice((10, 200, 2_000)) // (1 if ranks < 20 else 10))
    named = config(
        **{f"g{n}": ("d", range(rng.choice((2, ranks, ranks + 3)))) for n in range(groups)}
    )
    common = pickle.dumps([_row(rng, at, groups, ranks) for at in range(size)])
    job_records = []
    for rank in range(ranks):
        rows = pickle.loads(common)
        for _ in range(rng.choice((0, 1, 5, size))):
            rows[rng.randrange(size)] = _row(rng, rng.randrange(size), groups, ranks)
        del rows[rng.randrange(1, size + 1) if rng.random() < 0.5 else size :]
        heads = status(p0=(rng.randrange(9), 1, 0)) if rng.random() < 0.5 else {}
        whole = nccl(*rows, pg_config=rng.choice((named, {})), pg_status=heads)
        if rng.random() < 0.5:
            job_records.append(Record(rank, dump.read_dump(whole)))
        else:
            data = pickle.dumps(whole, 2)
            job_records.append(Record(rank, dump.read_dump(dump.decode(data))))
    analyse(assemble(job_records))


def _row(rng: random.Random, at: int, groups: int, ranks: int) -> dict[str, Any]:
    group = rng.randrange(groups)
    where = {"process_group": (f"g{group}", "d"), "pg_id": group}
    where["time_created_ns"] = CREATED + at * rng.choice((1, 10**9))
    match rng.randrange(6):
        case 0:
            name = f"nccl:send {rng.randrange(ranks)}->{rng.randrange(ranks)}"
            return send(at, rng.randrange(1, 9), name, **where)
        case 1:
            return send(at, rng.randrange(1, 9), "nccl:coalesced", op_id=rng.randrange(3), **where)
        case 2:
            return pending(at, rng.randrange(1, 99), **where)
        case 3:
            return entry(at, rng.randrange(1, 99), input_sizes=[[rng.randrange(3)]], **where)
        case _:
            return entry(at, at + 1, **where)


def answers(rng: random.Random) -> None:
    """WorkerServers' answers, as the live monitor reads them."""
    size, length = rng.choice((2, 4)), rng.choice((5, 200, 3_000))
    flight_records = []
    for rank in range(size):
        ring = [
            call(
                at + 1,
                rng.choice((at + 1, 1, 1 << 61, rng.randrange(50))),
                group=rng.choice(("default", "torchft", f"g{at % 300}")),
                quorum=rng.choice((None, at % 7)),
                nth=at,
                op=rng.choice(("all_reduce", "send", "barrier", "", "x" * 300)),
                enter_age_s=rng.choice((5.0, 1e8, 0.0, float(length - at))),
                exit_age_s=rng.choice((None, 0.0, 4.0)),
                root=rng.choice((None, 0, 1 << 40)),
                torch_ids=rng.choice(([], [at], [-at])),
            )
            for at in range(length)
        ]
        said = answer(*ring, rank=rank, size=size)
        if rng.random() < 0.5:
            said["torch"] = nccl(*(_row(rng, at, 40, size) for at in range(length // 2)))
            said["torch"]["pg_config"] = config(g0=("default_pg", range(size)))
        record = bounded(parse_flight_record(json.loads(json.dumps(said))))
        newest_collectives(record)
        flight_records.append(ring_rows.read_answer(record, taken_ns=CREATED))
    analyse(from_answers(flight_records))


CASES = (some_bytes, values, values, deep, program, zipped, job, job, answers)
