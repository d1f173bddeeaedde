"""What a monitor sees of the simulated fleet."""

from __future__ import annotations

import json

from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.observation import (
    Failure,
    LighthouseAway,
    LighthouseView,
    Member,
    Observation,
    Unreachable,
    with_pauses,
)
from lightkeeper.worker_server.wire import (
    SOURCE_REPORTER,
    WAIT_QUORUM,
    BackendRecord,
    Doing,
    FlightRecord,
    Frame,
    GroupHead,
    Prints,
    Process,
    RingEntry,
    StateReport,
    StepLog,
    StepRow,
    StepState,
    Witness,
)
from tests.changed import replace
from tests.monitor.fleet.quorum import Quorum
from tests.monitor.fleet.rank import ACROSS, INTRA, START_S, SimRank
from tests.monitor.records.dumps import config, entry, nccl, status


class Seen(Quorum):
    """Reports, steps, flight records and the Lighthouse's page."""

    def _past(self, name: RankName) -> StepLog | Unreachable:
        rank = self.rank(name)
        gone = self._is_silent(rank)
        if gone is not None:
            return gone
        rows = []
        for before, (attempt, step, end_s, spent) in zip(rank.log, rank.log[1:], strict=False):
            seconds = {phase: s - before[3].get(phase, 0.0) for phase, s in spent.items()}
            row = StepRow(attempt, step, 1, self.now_s - end_s, end_s - before[2], seconds)
            rows.append(row)
        return with_pauses(StepLog(rank.identity, rank.alive, tuple(rows), 0))

    def _view(self) -> LighthouseView | LighthouseAway:
        if self.now_s < self.lighthouse_away_until_s:
            return LighthouseAway("connection refused")
        return LighthouseView(
            quorum_id=self.quorum_id,
            members=tuple(
                Member(self.groups[name][0].replica_id, self.groups[name][0].step)
                for name in sorted(self.quorum)
                if name in self.groups
            ),
            heartbeat_ages_s={rid: self.now_s - beat for rid, beat in self.heartbeat_s.items()},
            status="",
            expired=frozenset(r for r, beat in self.heartbeat_s.items() if self.now_s - beat > 5.0),
        )

    def _is_silent(self, rank: SimRank) -> Unreachable | None:
        until_s, failure = self.silent_until.get(rank.name, (0.0, Failure.TIMEOUT))
        return Unreachable(failure, "no answer") if self.now_s < until_s else None

    def _observe(self, rank: SimRank) -> Observation:
        outcome = self._is_silent(rank) or self._report(rank)
        return Observation(rank.identity, f"http://{rank.host}/{rank.name}", outcome, 0.01)

    def _report(self, rank: SimRank) -> StateReport:
        now_s = self.now_s
        dead = rank.died_s is not None
        interpreter = 0.1
        if rank.gil_since_s is not None:
            interpreter = now_s - rank.gil_since_s
        if rank.stopped or rank.tracer is not None:
            interpreter = now_s - rank.phase_since_s
        heads: tuple[GroupHead, ...] = ()
        if self.across and (rank.across or rank.quorum[0] is not None):
            inside = rank.across if rank.place == "cross" else 0
            held = 0 if self.asynchronous else None
            age_s = now_s - rank.across_since_s if rank.across else 0.0
            size = len(self.quorum)
            heads = (
                GroupHead(ACROSS, size, rank.across, int(bool(inside)), "all_reduce", age_s, held),
            )
        still_s = now_s - max(rank.head_since_s, rank.begun_s, rank.phase_since_s)
        has_heads = not self.on_nccl or still_s >= self.nccl_heads_after_s
        if rank.world_size > 1 and rank.enqueued and has_heads:
            by_recorder = (self._started(rank), 0.4) if self.on_nccl else (None, None)
            heads = (
                *heads,
                GroupHead(
                    "nccl:default_pg" if self.on_nccl else INTRA,
                    rank.world_size,
                    rank.enqueued,
                    rank.enqueued - rank.completed,
                    rank.op,
                    now_s - rank.head_since_s,
                    started=by_recorder[0],
                    read_age_s=by_recorder[1],
                ),
            )
        return StateReport(
            identity=rank.identity,
            process=Process(
                alive=rank.alive,
                state=None
                if dead
                else "t"
                if rank.tracer is not None
                else "T"
                if rank.stopped
                else rank.state,
                dead_age_s=now_s - rank.died_s if rank.died_s is not None else None,
                exit_code=rank.exit_code,
                exit_signal=rank.exit_signal,
                interpreter_age_s=None if dead else interpreter,
                tracer=rank.tracer,
                cores=rank.cores,
            ),
            step=self._step(rank, now_s),
            heads=heads,
            witness=self._witness(rank, now_s),
            ending=rank.ending if dead else None,
        )

    def _started(self, rank: SimRank) -> int:
        return rank.completed if rank.name in self.gpu_stands else rank.enqueued

    def _waits_in(self, rank: SimRank) -> str | None:
        waits = self.tells_waits and rank.place == "cross"
        return rank.waits_in or (WAIT_QUORUM if waits else None)

    def _witness(self, rank: SimRank, now_s: float) -> Witness | None:
        """Stacks from outside: the first after 5 s without progress, then every 2 s."""
        still_s = now_s - max(
            rank.head_since_s, rank.across_since_s, rank.begun_s, rank.phase_since_s
        )
        if rank.place_of_code is None or still_s < 5 or not rank.alive or rank.tracer is not None:
            return None
        frame, doing = rank.place_of_code
        if rank.place == "cross":
            frame, doing = Frame("train", "train.py", 40), Doing.COLLECTIVE
        samples = 1 if rank.moves else 1 + int((still_s - 5) // 2)
        return Witness(frame, doing, samples, 2.0 * (samples - 1), 0.1)

    def _step(self, rank: SimRank, now_s: float) -> StepState | None:
        if self.source is None:
            return None
        state = StepState(
            step=rank.step,
            attempt=rank.attempt,
            progress=rank.progress,
            phase=rank.phase,
            phase_age_s=max(0.0, now_s - rank.phase_since_s),
            commits=rank.commits,
            last_commit_age_s=None
            if rank.committed_s is None
            else max(0.0, now_s - rank.committed_s),
            replica_id=rank.replica_id,
            quorum_id=rank.quorum[0],
            participants=rank.quorum[1],
            healing=now_s < rank.healing_until_s or rank.healed,
            errored=rank.errored,
            commit_failures=rank.failures,
            local_steps=rank.local_steps,
            committed_step=rank.committed,
            held_s=rank.held_s,
            seconds=dict(rank.seconds),
            tokens=rank.tokens,
            waits_in=self._waits_in(rank),
            loss=rank.loss,
            loss_finite=not (self.losses and rank.poisoned),
            spoilt=None
            if rank.spell is None
            else replace(rank.spell, age_s=max(0.0, now_s - rank.spell_s)),
            prints=Prints(7, rank.lineage, tuple(rank.prints)) if rank.prints else None,
        )
        if self.source == SOURCE_REPORTER:
            return state
        return replace(
            state,
            step=self._numbered(rank),
            source=self.source,
            phase="other",
            phase_age_s=max(0.0, now_s - rank.begun_s),
            progress=rank.attempt + rank.commits + rank.local_steps,
            # of what is over, as the page has it
            seconds={"other": max(0.0, rank.begun_s - START_S)},
            waited_s=rank.waited_s if self.tells_waits else None,
            waits_s=now_s - rank.across_since_s
            if self.tells_waits and rank.place == "cross"
            else None,
        )

    def _numbered(self, rank: SimRank) -> int:
        """The step by TorchFT's count."""
        begun = rank.attempt > rank.commits
        return rank.step + begun if self.vote_every == 1 else max(0, rank.step - (not begun))

    def _record(self, name: RankName) -> FlightRecord | Unreachable:
        rank = self.rank(name)
        gone = self._is_silent(rank)
        if gone is not None:
            return gone
        recorders = {}
        if self.on_nccl:
            recorders["dump_nccl_trace_json"] = BackendRecord(self._nccl(rank), 0.0)
        return FlightRecord(
            identity=rank.identity,
            alive=rank.alive,
            members={} if self.on_nccl else {INTRA: tuple(range(rank.world_size))},
            recorders=recorders,
            ring=tuple(
                RingEntry(
                    group=entry.get("group", INTRA),
                    seq=entry["seq"],
                    op=entry["op"],
                    sizes_in=entry["sizes_in"],
                    dtype=entry.get("dtype", "torch.float32"),
                    step=None if self.source is None else entry["step"],
                    attempt=None if self.source is None else entry["attempt"],
                    nth=entry["nth"],
                    site="train.py:42",
                    enter_age_s=self.now_s - entry["enter_s"],
                    exit_age_s=None if entry["exit_s"] is None else self.now_s - entry["exit_s"],
                )
                for entry in (rank.across_ring if self.on_nccl else one_ring(rank))
            ),
            dropped=0,
            torch=None,
        )

    def _nccl(self, rank: SimRank) -> dict:
        """What `dump_nccl_trace_json` says of the collectives within the group."""
        started = self._started(rank)
        calls = []
        for number, call in enumerate(rank.ring):
            seq, made_ns = call["seq"], int(call["enter_s"] * 1e9)
            over = call["exit_s"] is not None
            state = "completed" if over else "started" if seq <= started else "scheduled"
            calls.append(
                entry(
                    number, seq, time_created_ns=made_ns, state=state, retired=over,
                    profiling_name=f"nccl:{call['op']}",
                    input_sizes=[list(size) for size in call["sizes_in"]],
                    output_sizes=[list(size) for size in call["sizes_in"]],
                    time_discovered_started_ns=None if state == "scheduled" else made_ns + 1000,
                    time_discovered_completed_ns=int(call["exit_s"] * 1e9) if over else None,
                )
            )  # fmt: skip
        said = nccl(
            *calls,
            pg_config=config(**{"0": ("default_pg", range(rank.world_size))}),
            pg_status=status(p0=(rank.enqueued, started, rank.completed)),
        )
        return json.loads(json.dumps(said))


def one_ring(rank: SimRank) -> list[dict]:
    """What both rings hold of the time that both cover, in order."""
    since_s = max((ring[0]["enter_s"] for ring in (rank.ring, rank.across_ring) if ring), default=0)
    both = (entry for entry in (*rank.ring, *rank.across_ring) if entry["enter_s"] >= since_s)
    return sorted(both, key=lambda entry: entry["enter_s"])
