"""How an eviction proceeds: `handle(eviction, event, now_s)` returns the same eviction afterwards,
and what to do now. Pure: `act.evictor` carries the instructions out and reports events.

Theory of operation.

    decided --handed over--> preparing --saved--> asking --gone, or out of sight--> confirmed
       |                         |                  |
       |                         +------------------+-- refused, revoked, late, crashed --> failed
       +-- its monitor ended, or the disk did not take it: interrupted --reviewed--> decided again,
                                                                       confirmed, or abandoned

A decision is on disk as `decided` before it is handed over, and as `preparing` before anybody is
asked (`Begin`). Then:

1. evidence: flight records, stacks and states of the group are saved. Culprits of a standstill that
   move by then are let go.
2. quarantine: the culprit's hosts are put on the deny list before the group is gone, so that the
   launcher that restarts it is refused.
3. gate, where there is one: the replica id is put on its list, which follows from this rung's
   record. It needs nobody's cooperation: the others' next quorum comes when its heartbeats have
   aged out.
4. lighthouse_kill, together with the gate: the Lighthouse's kill button, pressed once. A kill that
   works answers 500, one on a stopped group takes 30 s to fail, so only looking counts. It reaches
   the manager in group rank 0 alone, and cannot work when that process is stopped or its
   interpreter is stuck: then it is skipped.
5. worker_evict: `POST /v1/evict` to the WorkerServer of every rank still alive: at once where the
   kill cannot work or has ended a part of the group, else after `kill_s`. Where an end has to be
   gentle (`EndManner`), they are asked first, and the kill button, which ends a process at once,
   waits for them.
6. scheduler, where there is one: it removes the pod or the job step, when the WorkerServers had
   their time (`worker_s`) and a rank is not gone.
7. page: nothing helped; a person is notified.

Each look (`Probe`) at the accused and the Lighthouse moves all rungs; none waits. The worker's part
is over when every accused *incarnation* is gone (a defunct process counts as gone), or those left
are out of sight and the group's heartbeat is dead; it has failed when neither is so in time. The
group is *out* when its replica id has also left the quorum, which later looks note; a replica id
that still beats though its processes are gone is a failure. A request goes only to an accused
incarnation that a look has just shown alive, or that is out of sight with no newer one registered:
a restarted group is never hit.

A restart of the monitor, a standby that takes over and a person who evicts are events like others.
After a takeover an eviction is `interrupted`. If the pipeline decides it again, the same eviction
continues (another attempt). Where the accused are gone it was carried out; where the fault has
passed, or a guard has held it for too long, it is abandoned and says why. One requested by a person
has no incident that could be decided again: it continues while the very same processes still run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from lightkeeper.monitor.model.escalation import (
    SLACK_S,
    Answered,
    Begin,
    Cleared,
    Climb,
    DecidedAgain,
    Event,
    EvictionDeps,
    HandedOver,
    Instructions,
    Interrupted,
    LighthouseSeen,
    Liveness,
    Move,
    Probe,
    Probed,
    ProbeResult,
    Reviewed,
    Revoked,
    Timeouts,
)
from lightkeeper.monitor.model.eviction import (
    ASKING,
    Accused,
    Ask,
    Eviction,
    EvictionState,
    Rung,
    RungOutcome,
    RungResult,
)
from lightkeeper.monitor.model.incident import Incident
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.observation import LighthouseAway, Snapshot
from lightkeeper.worker_server.wire import split_rank_name

# -- moving --------------------------------------------------------------------------------------

RECOVERED: Final = "it moves again: nobody is evicted"
"""Found by a last look at the culprits of a standstill, after their evidence was saved, or at ranks
that were out of sight."""


def handle(eviction: Eviction, event: Event, now_s: float, deps: EvictionDeps) -> Move:
    """The eviction after an event, and what to do; an unexpected event changes nothing."""
    if isinstance(event, LighthouseSeen):
        return _seen(eviction, event, now_s, deps), ()
    if isinstance(event, Interrupted):
        if eviction.open:
            return replace(eviction, state=EvictionState.INTERRUPTED, interrupted_s=now_s), ()
        return replace(eviction, interrupted_s=None), ()  # shown like an eviction of its own
    if eviction.under_way:
        return _under_way(eviction, event, now_s, deps)
    return _not_taken_up(eviction, event, now_s, deps) if eviction.open else (eviction, ())


def _not_taken_up(eviction: Eviction, event: Event, now_s: float, deps: EvictionDeps) -> Move:
    """Decided, or interrupted."""
    interrupted = eviction.state is EvictionState.INTERRUPTED
    match event:
        case DecidedAgain():
            return _decided_again(eviction, event, now_s), ()
        case Revoked():
            return _abandoned(eviction, event.why, now_s), ()
        case Reviewed() if interrupted:
            return _reviewed(eviction, event, now_s), ()
        case Reviewed() if now_s - eviction.asked_s > event.ack_s:
            since_s = eviction.asked_s
            return replace(eviction, state=EvictionState.INTERRUPTED, interrupted_s=since_s), ()
        case HandedOver() if not interrupted:
            return _handed_over(eviction, event, now_s, deps)
        case _:
            return eviction, ()


def _under_way(eviction: Eviction, event: Event, now_s: float, deps: EvictionDeps) -> Move:
    """Preparing, or asking."""
    preparing = eviction.state is EvictionState.PREPARING
    match event:
        case Probed():
            return _looked(eviction, event, now_s, deps)
        case Revoked():
            return _failed(eviction, event.why, now_s, deps)
        case Cleared() if preparing:
            return _cleared(eviction, event, now_s, deps)
        case Answered():
            return _answered(eviction, event, now_s)
        case _:
            return eviction, ()


def _decided_again(eviction: Eviction, event: DecidedAgain, now_s: float) -> Eviction:
    evict = event.evict
    return replace(
        _again(eviction, now_s),
        replica_id=evict.replica_id,
        reason=evict.reason,
        quarantine=evict.quarantine,
        keep_out=evict.keep_out,
        manner=evict.manner,
        lost=evict.lost,
        accused=evict.accused,
        epoch=evict.epoch,
    )


def _again(eviction: Eviction, now_s: float) -> Eviction:
    """Its next attempt, if somebody may have been asked; else still this one."""
    interrupted = eviction.state is EvictionState.INTERRUPTED
    return replace(
        eviction,
        state=EvictionState.DECIDED,
        asked_s=now_s,
        decided_s=eviction.at_s,
        attempt=eviction.attempt + (interrupted and eviction.taken_up),
        asks=(),
        asking_s=None,
        workers_turn_s=None,
        interrupted_s=None,
    )


def _handed_over(eviction: Eviction, event: HandedOver, now_s: float, deps: EvictionDeps) -> Move:
    eviction = replace(
        eviction,
        state=EvictionState.PREPARING,
        asked_s=event.asked_s,
        accused=event.accused,
        stood=event.stood,
        taken_up=True,
        asking_s=now_s,
    )
    if event.refused is not None:
        return _failed(eviction, event.refused, now_s, deps)
    return eviction, (Begin(),)


def _cleared(eviction: Eviction, event: Cleared, now_s: float, deps: EvictionDeps) -> Move:
    if event.may:
        return _asked(eviction, Rung.EVIDENCE, now_s)
    if _spent_s(eviction, now_s) >= deps.timeouts.confirm_s:
        why = "it could not be written down in time, so nobody was asked"
        return _failed(eviction, why, now_s, deps)
    return eviction, (Begin(deps.timeouts.pause_s),)


def _answered(eviction: Eviction, event: Answered, now_s: float) -> Move:
    ask = eviction.ask(event.rung, event.whom)
    if ask is None or not ask.waits:
        return eviction, ()
    done = True if ask.done else event.done  # a WorkerServer that said "gone" may say less later
    eviction = eviction.with_ask(replace(ask, said=event.said, waits=False, done=done))
    if event.rung in (Rung.EVIDENCE, Rung.QUARANTINE) and event.said:
        result = RungResult.WORKED if done else RungResult.FAILED
        outcome = RungOutcome(event.rung, ask.asked_s, now_s, event.said, result)
        eviction = eviction.with_rung(outcome)
    if event.rung is not Rung.EVIDENCE:
        return eviction, ()
    eviction = replace(eviction, asking_s=now_s)
    if eviction.stood:  # a culprit that has moved meanwhile is let go
        return eviction, (Probe(),)
    return _begin_to_ask(eviction, now_s)


def _begin_to_ask(eviction: Eviction, now_s: float) -> Move:
    eviction = replace(eviction, state=EvictionState.ASKING)
    if not eviction.quarantine and not eviction.keep_out:
        return eviction, (Probe(),)
    eviction, deny = _asked(eviction, Rung.QUARANTINE, now_s)
    return eviction, (*deny, Probe())


def _looked(eviction: Eviction, event: Probed, now_s: float, deps: EvictionDeps) -> Move:
    look, times = event.look, deps.timeouts
    eviction = _seen(eviction, look.lighthouse, now_s, deps)
    late = _spent_s(eviction, now_s) >= deps.given_s(eviction)
    preparing = eviction.state is EvictionState.PREPARING
    if look.moving(eviction.stood) if preparing else _in_sight(eviction, look):
        return _failed(eviction, RECOVERED, now_s, deps)
    if preparing:
        if event.may:
            return _begin_to_ask(eviction, now_s)
    elif look.all_gone:
        by = "; ".join(f"{rank} {look.details[rank]}" for rank in sorted(look.details)[:8])
        how = f"every known process of it is gone ({by})"
        said = "every accused process is gone"
        eviction = replace(_climbed(eviction, look, now_s, deps, last=True)[0], gone_s=now_s)
        return _confirmed(eviction, how, said, now_s), ()
    elif (unseen := _out_of_sight(eviction, look, deps)) is not None:
        said = "its group has left, its processes cannot be seen"
        eviction = replace(_climbed(eviction, look, now_s, deps, last=True)[0], unseen_s=now_s)
        return _confirmed(eviction, unseen, said, now_s), ()
    if late:
        why = _not_gone(eviction, look, deps)
        return _failed(_climbed(eviction, look, now_s, deps, last=True)[0], why, now_s, deps)
    asked: Instructions = ()
    if event.may and eviction.state is EvictionState.ASKING:
        eviction, asked = _climbed(eviction, look, now_s, deps)
    return eviction, (*asked, Probe(times.pause_s))


def _spent_s(eviction: Eviction, now_s: float) -> float:
    """Time used of its limit."""
    return now_s - (eviction.asked_s if eviction.asking_s is None else eviction.asking_s)


def _in_sight(eviction: Eviction, look: ProbeResult) -> bool:
    """True if a rank on a host that was out of sight answers before anybody was asked to end it."""
    if eviction.by_hand or any(outcome.rung in ASKING for outcome in eviction.rungs):
        return False
    seen = look.having(Liveness.ALIVE, Liveness.STUCK)
    return any(a.rank in seen for a in eviction.accused if a.host in eviction.lost)


def _not_gone(eviction: Eviction, look: ProbeResult, deps: EvictionDeps) -> str:
    still = "; ".join(
        f"{rank} {look.details[rank]}"
        for rank in sorted(look.lives)
        if look.lives[rank] is not Liveness.GONE
    )
    workers = eviction.rung(Rung.WORKER_EVICT)
    said = "" if workers is None else f" (asked: {workers.detail})"
    scheduler = eviction.rung(Rung.SCHEDULER)
    if eviction.lost and scheduler is not None:
        return f"{eviction.group} is gone, and not removed: {scheduler.detail}"
    return f"not gone after {deps.given_s(eviction):.0f} s: {still}{said}"


def _out_of_sight(eviction: Eviction, look: ProbeResult, deps: EvictionDeps) -> str | None:
    """Why ranks not seen dead may be given up: all are out of sight and were asked, and their
    group's heartbeat is dead. More cannot be known of a lost host, but by a scheduler that has
    removed them.
    """
    replica_id, waits = eviction.replica_id, bool(eviction.lost and deps.schedulers)
    if look.having(Liveness.ALIVE, Liveness.STUCK) or (replica_id is None and not waits):
        return None
    silent_s = deps.timeouts.heartbeat_dead_s
    if replica_id is not None and not look.lighthouse.silent(replica_id, silent_s):
        return None
    if waits:
        return _removed(eviction)
    if not eviction.accused:
        return "its heartbeat ended; no WorkerServer of it is known"
    unseen = look.having(Liveness.UNSEEN)
    asks = eviction.asks_by(Rung.WORKER_EVICT)
    if not unseen or not asks or any(ask.waits for ask in asks):
        return None
    return f"host out of sight, its heartbeat is dead ({', '.join(unseen)} not seen)"


def _removed(eviction: Eviction) -> str | None:
    """How a scheduler has ended what nobody sees; None while it has not."""
    rung = eviction.rung(Rung.SCHEDULER)
    removed = rung is not None and rung.result is RungResult.WORKED
    return f"nothing of it is heard; {rung.detail}" if rung is not None and removed else None


# -- ends ----------------------------------------------------------------------------------------


def _confirmed(eviction: Eviction, how: str, outcome: str, now_s: float) -> Eviction:
    ended = replace(eviction, state=EvictionState.CONFIRMED, outcome=outcome, ended_s=now_s)
    return _shown(ended, how)


def _shown(eviction: Eviction, how: str) -> Eviction:
    """Adds one proof that it is out, for a person."""
    if how not in eviction.shown:
        eviction = replace(eviction, shown=(*eviction.shown, how))
    if eviction.out and eviction.confirmed is None:
        eviction = replace(eviction, confirmed="; ".join(eviction.shown))
    return eviction


def _failed(eviction: Eviction, why: str, now_s: float, deps: EvictionDeps) -> Move:
    """A person is needed, unless nobody has been asked for anything."""
    for outcome in eviction.rungs:
        if outcome.result is None:
            eviction = eviction.with_rung(
                _ended(outcome, now_s, outcome.detail, RungResult.UNKNOWN)
            )
    if any(outcome.rung in ASKING for outcome in eviction.rungs):
        detail, result = f"handed to {', '.join(deps.sinks)}", RungResult.WORKED
        if not deps.sinks:
            detail, result = "nobody is told: no --notify sink", RungResult.SKIPPED
        eviction = eviction.with_rung(RungOutcome(Rung.PAGE, now_s, now_s, detail, result))
    ended_s = now_s if eviction.ended_s is None else eviction.ended_s
    state = EvictionState.FAILED
    return replace(eviction, state=state, failed=why, outcome=why, ended_s=ended_s), ()


def _abandoned(eviction: Eviction, why: str, now_s: float) -> Eviction:
    return replace(
        eviction,
        state=EvictionState.ABANDONED,
        failed=f"abandoned: {why}",
        outcome=why,
        ended_s=now_s,
    )


def _seen(eviction: Eviction, event: LighthouseSeen, now_s: float, deps: EvictionDeps) -> Eviction:
    replica_id, gone_s, times = eviction.replica_id, eviction.gone_s, deps.timeouts
    begun = eviction.under_way or not eviction.open
    if replica_id is None or eviction.left_quorum_s is not None or not begun:
        return eviction
    out = event.out(replica_id, times.heartbeat_dead_s)
    if out is not None:
        return _shown(replace(eviction, left_quorum_s=now_s), out)
    if eviction.state is not EvictionState.CONFIRMED or gone_s is None:
        return eviction
    if not event.beats_on(replica_id, now_s - gone_s, times.leave_s):
        return eviction
    who = "a process of which no WorkerServer tells hosts its manager"
    why = f"its processes are gone, yet {replica_id} still beats: {who}"
    return _failed(eviction, why, now_s, deps)[0]


def _reviewed(eviction: Eviction, event: Reviewed, now_s: float) -> Eviction:
    """The new state of an eviction that another monitor left; unchanged while that is unknown."""
    lives = _lives(eviction.accused, event.snapshot)
    if lives and all(life is False for life in lives):
        if not eviction.taken_up:
            return _abandoned(eviction, "its processes had gone before anybody was asked", now_s)
        why = "its processes are gone: seen by who took over"
        return _confirmed(replace(eviction, gone_s=now_s), why, why, now_s)
    if event.incident is not None and not event.incident.open:
        return _over_with(eviction, event.incident, now_s)
    if eviction.by_hand and lives and all(lives):
        return _again(eviction, now_s)
    unseen = "its processes cannot be seen" if None in lives else "it was not seen again"
    why = f"not asked again within {event.patience_s:.0f} s: {event.held or unseen}"
    since_s = now_s if eviction.interrupted_s is None else eviction.interrupted_s
    waits = now_s - since_s < event.patience_s
    return eviction if waits else _abandoned(eviction, why, now_s)


def _over_with(eviction: Eviction, incident: Incident, now_s: float) -> Eviction:
    why, left_s = incident.resolution or "its incident is over", incident.milestones.left_quorum_s
    if eviction.taken_up and left_s is not None and left_s >= eviction.at_s:
        return _confirmed(replace(eviction, gone_s=now_s), why, why, now_s)
    return _abandoned(eviction, f"not asked again: {why}", now_s)


def _lives(accused: Iterable[Accused], snapshot: Snapshot) -> Sequence[bool | None]:
    """For each accused incarnation: does it live? None: it cannot be seen."""
    seen = snapshot.by_rank
    lives: list[bool | None] = []
    for suspect in accused:
        observation = seen.get(suspect.rank)
        report = None if observation is None else observation.report
        if observation is not None and observation.identity.incarnation != suspect.incarnation:
            lives.append(False)
        else:
            lives.append(None if report is None else report.process.alive)
    return lives


# -- rungs ---------------------------------------------------------------------------------------


def _climbed(
    eviction: Eviction, look: ProbeResult, now_s: float, deps: EvictionDeps, *, last: bool = False
) -> Move:
    """Every rung after a look. At the `last` one nobody is asked, and each records its end."""
    asked: Instructions = ()
    for climb in (_gate, _kill, _workers, _schedulers):
        eviction, more = climb(eviction, look, now_s, deps, last)
        asked += more
    return eviction, asked


def _late(outcome: RungOutcome, now_s: float) -> bool:
    """True if a rung's time is over."""
    return now_s - outcome.started_s >= (outcome.deadline_s or 0.0)


def _ended(outcome: RungOutcome, now_s: float, detail: str, result: RungResult) -> RungOutcome:
    return replace(outcome, finished_s=now_s, detail=detail, result=result)


def _may_ask(eviction: Eviction, rung: Rung, whom: str, now_s: float, after_s: float) -> bool:
    """True if nobody was asked, or the last request has its answer and is this long ago."""
    ask = eviction.ask(rung, whom)
    return ask is None or (not ask.waits and now_s - ask.asked_s >= after_s)


def _asked(eviction: Eviction, rung: Rung, now_s: float, whom: str = "") -> Move:
    before = eviction.ask(rung, whom) or Ask(rung, whom, now_s)
    moved = eviction.with_ask(replace(before, asked_s=now_s, waits=True))
    return moved, (Climb(rung, whom),)


def _gate(
    eviction: Eviction, look: ProbeResult, now_s: float, deps: EvictionDeps, last: bool
) -> Move:
    """Asked once this rung is recorded, again every few seconds until its list is in force."""
    times, rung, taught = deps.timeouts, eviction.rung(Rung.GATE), eviction.ask(Rung.GATE)
    if rung is None:
        begins = deps.gate and not last
        return (eviction.with_rung(_gate_rung(eviction, now_s, times)) if begins else eviction), ()
    if rung.result in (RungResult.WORKED, RungResult.SKIPPED) or (last and rung.result):
        return eviction, ()
    rung = _gate_outcome(eviction, rung, look, now_s, last=last)
    eviction = eviction.with_rung(rung)
    ask = taught is None or now_s - taught.asked_s >= times.ask_again_s
    if last or rung.result is RungResult.WORKED or not ask:
        return eviction, ()
    return _asked(eviction, Rung.GATE, now_s)


def _gate_outcome(
    eviction: Eviction, rung: RungOutcome, look: ProbeResult, now_s: float, *, last: bool
) -> RungOutcome:
    ask = eviction.ask(Rung.GATE)
    trouble = (ask and ask.said) or look.gate_trouble
    if last:
        why = trouble or "the group was gone before its list was seen in force"
        return _ended(rung, now_s, why, RungResult.UNKNOWN)
    if look.lighthouse.refused_for_s is not None:
        return _ended(rung, now_s, f"it refuses {eviction.replica_id}", RungResult.WORKED)
    if not _late(rung, now_s) or rung.result is not None:
        return rung
    why = trouble or "its list has not been seen in force"
    return _ended(rung, now_s, why, RungResult.FAILED)


def _gate_rung(eviction: Eviction, now_s: float, times: Timeouts) -> RungOutcome:
    rung = RungOutcome(Rung.GATE, now_s, None, "asked", None, times.gate_s)
    if eviction.replica_id is not None:
        return rung
    return _ended(rung, now_s, "the group never joined a quorum", RungResult.SKIPPED)


def _kill(
    eviction: Eviction, look: ProbeResult, now_s: float, deps: EvictionDeps, last: bool
) -> Move:
    """By replica id, once: if a kill request hangs, a second one hangs too."""
    kill = Rung.LIGHTHOUSE_KILL
    rung, ask = eviction.rung(kill), eviction.ask(kill) or Ask(kill, "", now_s)
    if rung is None:
        return (eviction, ()) if last else _press(eviction, look, now_s, deps)
    if rung.finished_s is None and (last or not ask.waits):
        said = "no answer so far" if ask.waits else ask.said or ""
        failed = RungResult.FAILED if ask.done is False else rung.result
        rung = replace(rung, finished_s=now_s, detail=said, result=failed)
    if rung.result is None and (last or _late(rung, now_s)):
        rung = replace(rung, result=_killed(eviction, look))
        if rung.result is RungResult.WORKED:  # which TorchFT 0.2.0 calls an error
            ended = "the group's manager has ended"
            said = f"{rung.detail}; {ended}" if ask.done else f"{ended} before it answered"
            rung = replace(rung, detail=said)
    return eviction.with_rung(rung), ()


def _press(eviction: Eviction, look: ProbeResult, now_s: float, deps: EvictionDeps) -> Move:
    kill = Rung.LIGHTHOUSE_KILL
    if _gently(eviction, now_s):
        return eviction, ()
    rung = RungOutcome(kill, now_s, None, "asked", None, deps.timeouts.kill_s)
    obstacle = _kill_obstacle(eviction, look)
    if obstacle is not None:
        rung = _ended(rung, now_s, obstacle, RungResult.SKIPPED)
        return eviction.with_rung(rung), ()
    return _asked(eviction.with_rung(rung), kill, now_s)


def _gently(eviction: Eviction, now_s: float) -> bool:
    """True if the kill button has to wait for a gentle end."""
    manner, turn_s = eviction.manner, eviction.workers_turn_s
    if not manner.gently_s:
        return False
    return turn_s is None or now_s - turn_s < manner.gently_s + manner.grace_s + SLACK_S


def _managers(eviction: Eviction) -> list[RankName]:
    """The kill reaches the manager, which lives in group rank 0, and no other process."""
    return [accused.rank for accused in eviction.accused if split_rank_name(accused.rank)[1] == 0]


def _kill_obstacle(  # noqa: PLR0911  one reason a line
    eviction: Eviction, look: ProbeResult
) -> str | None:
    view = look.lighthouse.view
    if isinstance(view, LighthouseAway):
        return "no Lighthouse answers"
    if eviction.replica_id is None:
        return "the group never joined a quorum"
    if eviction.ask(Rung.LIGHTHOUSE_KILL) is not None:
        return "it was pressed before"
    if eviction.replica_id not in view.ids:
        return "the Lighthouse kills members of its last quorum only"
    if eviction.replica_id in view.expired:
        return "its manager beats no more, and would not hear it"
    for rank in _managers(eviction):
        if look.lives[rank] in (Liveness.STUCK, Liveness.GONE):
            return f"{rank}, which hosts the manager: {look.details[rank]}"
    return None


def _killed(eviction: Eviction, look: ProbeResult) -> RungResult:
    """By looking: a kill that worked answers 500, but so do others."""
    lives = [look.lives[rank] for rank in _managers(eviction)]
    if not lives or Liveness.UNSEEN in lives:
        return RungResult.UNKNOWN
    return RungResult.WORKED if all(life is Liveness.GONE for life in lives) else RungResult.FAILED


def _workers(
    eviction: Eviction, look: ProbeResult, now_s: float, deps: EvictionDeps, last: bool
) -> Move:
    """Ranks still alive, once the kill is over or has ended a part of the group, and the stuck ones
    before; each again every `ask_again_s`.
    """
    times, everyone = deps.timeouts, _workers_turn(eviction, look, now_s)
    if everyone and eviction.workers_turn_s is None:
        eviction = replace(eviction, workers_turn_s=now_s)
    asked: Instructions = ()
    if not last:
        again_s = times.ask_again_s
        eviction, asked = _ask_workers(eviction, look, now_s, again_s, everyone=everyone)
    asks = sorted(eviction.asks_by(Rung.WORKER_EVICT), key=lambda ask: ask.whom)
    if not asks:
        return eviction, ()
    rung = eviction.rung(Rung.WORKER_EVICT) or RungOutcome(
        Rung.WORKER_EVICT, now_s, None, "", None, times.worker_s + eviction.manner.more_s
    )
    rung = replace(rung, detail="; ".join(f"{ask.whom} {ask.said or 'asked'}" for ask in asks))
    if last:
        lives = {look.lives[RankName(ask.whom)] for ask in asks} - {Liveness.GONE}
        result = RungResult.UNKNOWN if lives <= {Liveness.UNSEEN} else RungResult.FAILED
        rung = _ended(rung, now_s, rung.detail, result if lives else RungResult.WORKED)
    return eviction.with_rung(rung), asked


def _ask_workers(
    eviction: Eviction, look: ProbeResult, now_s: float, again_s: float, *, everyone: bool
) -> Move:
    asked: Instructions = ()
    for rank in (accused.rank for accused in eviction.accused):
        life = look.lives[rank]
        # alive, or nothing is seen and no newer incarnation bears the name
        reachable = life is Liveness.ALIVE or (life is Liveness.UNSEEN and rank in look.current)
        due = life is Liveness.STUCK or (everyone and reachable)
        if due and _may_ask(eviction, Rung.WORKER_EVICT, rank, now_s, again_s):
            eviction, more = _asked(eviction, Rung.WORKER_EVICT, now_s, rank)
            asked += more
    return eviction, asked


def _workers_turn(eviction: Eviction, look: ProbeResult, now_s: float) -> bool:
    """True if all ranks are asked now, not only those that are stuck."""
    kill = eviction.rung(Rung.LIGHTHOUSE_KILL)
    killed = kill is not None and (kill.result is not None or _late(kill, now_s))
    return killed or _gently(eviction, now_s) or bool(look.having(Liveness.GONE))


def _schedulers(
    eviction: Eviction, look: ProbeResult, now_s: float, deps: EvictionDeps, last: bool
) -> Move:
    """Schedulers that have not done it, after the WorkerServers; one that refused is asked again
    later. A scheduler ends whatever runs there: it is never asked about a group that has restarted.
    """
    times, kind, rung = deps.timeouts, Rung.SCHEDULER, eviction.rung(Rung.SCHEDULER)
    if rung is None:
        if last or not deps.schedulers or not _schedulers_turn(eviction, look, now_s, times):
            return eviction, ()
        limit_s = times.lost_s if eviction.lost else times.scheduler_s
        rung = RungOutcome(kind, now_s, None, "asked", None, limit_s)
    if rung.result is not None:
        return eviction, ()
    if look.superseded and not last:
        why = f"{min(look.superseded)} is another process by now"
        return eviction.with_rung(_ended(rung, now_s, why, RungResult.SKIPPED)), ()
    return _ask_schedulers(eviction, rung, now_s, deps, over=last or _late(rung, now_s))


def _ask_schedulers(
    eviction: Eviction, rung: RungOutcome, now_s: float, deps: EvictionDeps, *, over: bool
) -> Move:
    asked: Instructions = ()
    kind, again_s = Rung.SCHEDULER, deps.timeouts.schedule_again_s
    done = {ask.whom for ask in eviction.asks_by(kind) if ask.done}
    for name in () if over else deps.schedulers:
        if name not in done and _may_ask(eviction, kind, name, now_s, again_s):
            eviction, more = _asked(eviction, kind, now_s, name)
            asked += more
    asks = sorted(eviction.asks_by(kind), key=lambda ask: deps.schedulers.index(ask.whom))
    rung = replace(rung, detail="; ".join(f"{ask.whom}: {ask.said or 'asked'}" for ask in asks))
    if over or len(done) == len(asks):
        waits = any(ask.waits for ask in asks)
        result = RungResult.UNKNOWN if waits else RungResult.FAILED
        rung = _ended(rung, now_s, rung.detail, RungResult.WORKED if done else result)
    return eviction.with_rung(rung), asked


def _schedulers_turn(eviction: Eviction, look: ProbeResult, now_s: float, times: Timeouts) -> bool:
    """True if the WorkerServers had their time, or none in sight could do anything."""
    turn_s = eviction.workers_turn_s
    if eviction.lost and not look.having(Liveness.ALIVE, Liveness.STUCK):
        return True
    return turn_s is not None and now_s - turn_s >= times.worker_s + eviction.manner.more_s
