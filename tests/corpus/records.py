"""What torch's flight recorder would have written of a simulated run at a given time.

Keys, their order and their values follow FlightRecorderDetail.hpp of torch 2.13 (schema 2.10) and
the real dumps of schema 2.9 in ../shared/data; gloo's oddities are those measured in
../shared/facts/torch_debug_plane.md section 2. Where NCCL is coarse, so is this:

- `started` exists only with timing enabled; without it an entry goes from scheduled to completed.
- completion is found by a watchdog that looks every 100 ms, and once more by the dump itself; only
  the watchdog sets `retired` and moves `pg_status`.
- the parts of a batch of sends and recvs have no events: they stay scheduled for ever.
- after an error on the GPU no query succeeds: what was not found completed stays unfinished.
- a group stands in `pg_config` only once its communicator exists, that is after its first call.
"""

from __future__ import annotations

import json
import math
import os
import pickle
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.corpus.simulate import Entry, Run

WATCHDOG_MS = 100.0
EPOCH_NS = 1_763_700_000_000_000_000
MS = 1_000_000


@dataclass(frozen=True)
class Recorder:
    """How the job was configured to record."""

    backend: str = "nccl"
    version: str = "2.10"
    timing: bool = False
    only_active: bool = False
    frames: bool = True
    status: bool = True
    capacity: int = 2000
    aborted: bool = False
    """Written after the watchdog had given up: all is retired."""
    older: int = 0
    """Calls per group before the simulation began: sequences do not start at 1."""
    clocks: dict[int, float] = field(default_factory=dict)
    """Error of each rank's clock, ms."""


def dump(run: Run, rank: int, at: float, how: Recorder) -> dict[str, Any]:
    """The record of `rank` as of `at` ms, as the object that is pickled."""
    return Writer(run, rank, at, how).document()


class Writer:
    def __init__(self, run: Run, rank: int, at: float, how: Recorder) -> None:
        self.run, self.rank, self.at, self.how = run, rank, at, how
        self.nccl = how.backend == "nccl"
        self.teams = run.programs.teams
        self.entries = [entry for entry in run.entries[rank] if entry.created <= at]
        # Process-local numbers: a group that this rank made third is number 3 here only.
        mine = [team for team in self.teams if rank in team.members]
        self.pg_ids = {team.index: number for number, team in enumerate(mine)}

    def found(self, time: float) -> float:
        """When the recorder noticed what happened at `time`; inf if it has not yet."""
        if not self.nccl:
            return time if time <= self.at else math.inf
        seen = self.polled(time)
        broken = self.run.errors.get(self.rank, math.inf)
        if seen <= min(self.at, broken):
            return seen
        return self.at if time <= self.at < broken else math.inf

    def polled(self, time: float) -> float:
        if time == math.inf:
            return time
        phase = (self.rank * 37) % WATCHDOG_MS
        return math.ceil((time - phase) / WATCHDOG_MS) * WATCHDOG_MS + phase

    def retired(self, entry: Entry) -> bool:
        if entry.part:
            return False
        limit = min(self.at, self.run.errors.get(self.rank, math.inf))
        done = entry.kernel.done if not self.nccl else self.polled(entry.kernel.done)
        return done <= limit or self.how.aborted

    def document(self) -> dict[str, Any]:
        kept = self.entries[-self.how.capacity :]
        skipped = len(self.entries) - len(kept)
        rows = [
            self.row(entry, skipped + number)
            for number, entry in enumerate(kept)
            if not (self.how.only_active and self.state(entry) == "completed")
        ]
        out: dict[str, Any] = {"version": self.how.version, "pg_config": self.config()}
        library = "2.27.3" if self.nccl else ""
        out["comm_lib_version" if self.how.version == "2.10" else "nccl_version"] = library
        if self.how.status:
            out["pg_status"] = self.status()
        out["entries"] = rows
        return out

    def config(self) -> dict[str, Any]:
        if not self.nccl:
            return {"": {"name": "", "desc": "", "ranks": "[]"}}
        used = {entry.call.team for entry in self.entries}
        return {
            team.name: {"name": team.name, "desc": team.desc, "ranks": str(list(team.members))}
            for team in self.teams
            if team.index in used
        }

    def status(self) -> dict[str, Any]:
        out: dict[str, dict[str, int]] = {}
        for entry in self.entries:
            if entry.part:
                continue
            status = out.setdefault(
                str(self.pg_ids[entry.call.team]),
                {
                    "last_enqueued_collective": -1,
                    "last_started_collective": -1,
                    "last_completed_collective": -1,
                },
            )
            seq = self.how.older + (entry.p2p_seq if entry.call.p2p else entry.collective_seq)
            status["last_enqueued_collective"] = seq
            if self.nccl and self.how.timing and self.seen_started(entry):
                status["last_started_collective"] = seq
            if self.retired(entry) and (not self.how.aborted or not self.nccl):
                status["last_completed_collective"] = seq
        return out

    def seen_started(self, entry: Entry) -> bool:
        return self.polled(entry.kernel.started) <= min(
            self.at, self.run.errors.get(self.rank, math.inf)
        )

    def state(self, entry: Entry) -> str:
        if entry.part or not self.nccl:
            return "scheduled"
        if self.found(entry.kernel.done) < math.inf:
            return "completed"
        if self.how.timing and self.found(entry.kernel.started) < math.inf:
            return "started"
        return "scheduled"

    def ns(self, time: float) -> int:
        return EPOCH_NS + int((time + self.how.clocks.get(self.rank, 0.0)) * MS)

    def discovered(self, entry: Entry, time: float) -> int | None:
        if entry.part or not self.nccl or self.found(time) == math.inf:
            return None
        return self.ns(self.found(time))

    def row(self, entry: Entry, number: int) -> dict[str, Any]:
        call, team = entry.call, self.teams[entry.call.team]
        bare = entry.ends
        dtypes = [call.dtype]
        row: dict[str, Any] = {}
        if self.how.frames:
            row["frames"] = frames(call.site)
        older = self.how.older
        row |= {
            "record_id": older * 11 + number,
            "pg_id": self.pg_ids[team.index],
            "process_group": (team.name, team.desc),
        }
        if self.how.version not in {"2.4", "2.5"}:
            row |= {"thread_name": "python", "thread_id": str(140_000_000_000_000 + self.rank)}
        row |= {
            "collective_seq_id": older + entry.collective_seq if entry.collective_seq else 0,
            "p2p_seq_id": older + entry.p2p_seq if entry.p2p_seq else 0,
            "op_id": older + entry.op_id,
            "profiling_name": self.name(entry),
            "time_created_ns": self.ns(entry.created),
        }
        state = self.state(entry)
        if state == "completed" and self.how.timing and self.retired(entry):
            row["duration_ms"] = round(entry.kernel.done - entry.kernel.started, 3)
        row |= {
            "input_sizes": [] if bare else [list(size) for size in call.sizes_in],
            "input_dtypes": [] if bare else dtypes * len(call.sizes_in),
            "output_sizes": [] if bare else [list(size) for size in call.sizes_out],
            "output_dtypes": [] if bare else dtypes * len(call.sizes_out),
            "state": state,
            "time_discovered_started_ns": (
                self.discovered(entry, entry.kernel.started) if self.how.timing else None
            ),
            "time_discovered_completed_ns": self.discovered(entry, entry.kernel.done),
            "retired": self.retired(entry),
            "timeout_ms": 600_000,
            "is_p2p": call.p2p,
        }
        return row

    def name(self, entry: Entry) -> str:
        call = entry.call
        if entry.ends:
            return "nccl:coalesced"
        if not self.nccl:
            return f"gloo:{GLOO_NAMES.get(call.op, call.op)}"
        if not call.p2p:
            op = "all_reduce_barrier" if call.op == "barrier" else call.op
            return f"nccl:{op}"
        me = self.teams[call.team].members.index(self.rank)
        return f"nccl:{call.op} {me}{'->' if call.sends else '<-'}{call.peer}"


GLOO_NAMES = {"_all_gather_base": "all_gather", "_reduce_scatter_base": "all_reduce"}


def frames(site: str) -> list[dict[str, Any]]:
    """Innermost first: torch's own frames, then the program's."""
    place, function = site.split(" ")
    file, line = place.split(":")
    torch = "/usr/lib/python3/site-packages/torch/distributed/"
    return [
        {"name": "wrapper", "filename": torch + "c10d_logger.py", "line": 81},
        {"name": function, "filename": f"/job/src/{file}", "line": int(line)},
        {"name": "main", "filename": "/job/src/main.py", "line": 12},
    ]


def as_json(document: dict[str, Any]) -> str:
    """The same record as `dump_json` would have written it."""
    out = dict(document)
    if "pg_status" in out:
        out["pg_status"] = {
            key: {name: str(value) for name, value in status.items()}
            for key, status in out["pg_status"].items()
        }
    rows = []
    for row in document["entries"]:
        plain = {key: value for key, value in row.items() if key != "frames"}
        for key in ("time_discovered_started_ns", "time_discovered_completed_ns"):
            plain[key] = plain[key] or 0
        plain["process_group"] = list(plain["process_group"])
        rows.append(plain)
    out.pop("entries")
    if rows:
        out["entries"] = rows
    return json.dumps(out, separators=(",", ":"), sort_keys=True)


def write(
    documents: Iterable[tuple[int, dict[str, Any], float]],
    folder: Path,
    *,
    prefix: str = "nccl_trace_rank_",
    json_files: bool = False,
) -> None:
    """One file a rank, dated when it was written (`at`, ms)."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, document, at in documents:
        path = folder / (f"{prefix}{rank}.json" if json_files else f"{prefix}{rank}")
        data = as_json(document).encode() if json_files else pickle.dumps(document, protocol=2)
        path.write_bytes(data)
        date = EPOCH_NS + int(at * MS)
        os.utime(path, ns=(date, date))
