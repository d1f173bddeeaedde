"""An incident in one sentence, the five facts that people ask for first, what its steps said.

Who, since when, what was done, is it over, does the job train again. Where nobody can tell, that
is what is said. Made from the incident's JSON, as `GET /v1/incidents/ID` answers it, by the page
and by the command line alike. Pure.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from monitor.show.wording import clean, counted, plain, span, time_of_day

_DID: Final = {
    "not_entered": ("stood still", "stands still"),
    "mismatch": ("called another collective than its peers",) * 2,
    "deadlock": ("was in a deadlock", "is in a deadlock"),
    "dead": ("died", "died"),
    "straggler": ("worked slower than its peers", "works slower than its peers"),
    "replica_lag": ("fell behind the other groups", "lags behind the other groups"),
    "state_corrupt": ("went wrong in its numbers",) * 2,
}
"""When it is over, and while it is not."""
_NOBODY: Final = {
    "not_entered": "somebody stood still, and it cannot be told who",
    "mismatch": "ranks called different collectives, and it cannot be told who was wrong",
    "deadlock": "everybody waited inside of collectives, and it cannot be told for whom",
    "dead": "processes were gone, and nobody is accused",
    "straggler": "ranks worked slower than usual, and nobody is accused",
    "replica_lag": "no commit went through, or groups came and went, and nobody is accused",
    "lighthouse_away": "the Lighthouse did not answer",
    "state_corrupt": "numbers went wrong, and it cannot be told where first",
}
_NAMED: Final = 3
_FAR_S: Final = 1e11


@dataclass(frozen=True, slots=True)
class Fact:
    """One of the five, beside each other at the top of the page."""

    name: str
    word: str
    more: str
    tone: str


def moment_of(value: object) -> float | None:
    """A time that can be drawn; stores may be damaged."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known and math.isfinite(value) and abs(value) < _FAR_S else None  # type: ignore[arg-type]


def began_s(body: Mapping[str, Any]) -> float:
    """When the fault began, as nearly as it is known."""
    parts = body["account"]["intervals"]
    told = (parts[0]["start_s"] if parts else None, body["milestones"]["first_seen_s"])
    return next((at_s for at_s in map(moment_of, told) if at_s is not None), 0.0)


def ended_s(body: Mapping[str, Any]) -> float | None:
    """When it was resolved; None while it is open."""
    if body["state"] != "resolved":
        return None
    ends = [moment_of(line["at_s"]) for line in body["story"] if line["to"] == "resolved"]
    known = [at_s for at_s in ends if at_s is not None]
    return known[-1] if known else moment_of(body["last_seen_s"])


def title(body: Mapping[str, Any]) -> str:
    """Who did what, as short as it goes."""
    if body["kind"] == "by_hand":
        return f"A person asked to evict {_names(body['groups'])}"
    if body["kind"] == "lighthouse_away" or not body["culprits"]:
        found = _NOBODY.get(body["kind"], f"{plain(body['kind'])}: nobody is accused")
        return found[:1].upper() + found[1:]
    still = body["state"] != "resolved"
    did = _DID.get(body["kind"], (plain(body["kind"]),) * 2)[still]
    return f"{_names(body['culprits'])} {_many(did) if len(body['culprits']) > 1 else did}"


def _many(did: str) -> str:
    """The same of several."""
    for one, several in (("stands ", "stand "), ("is in ", "are in "), ("was in ", "were in "),
                         ("works ", "work "), ("lags ", "lag "), ("its ", "their ")):  # fmt: skip
        did = did.replace(one, several)
    return did


def sentence_of(body: Mapping[str, Any]) -> str:
    """The whole incident in one sentence: who where since when, what was done, is it over."""
    hosts = body["account"]["ran_on"]
    where = f" (on {_names(hosts)})" if hosts else ""
    open_ = body["state"] != "resolved"
    when = "at" if body["kind"] == "by_hand" else "since" if open_ else "from"
    return (
        f"{title(body)}{where} {when} {time_of_day(began_s(body))}; "
        f"{'; '.join((_done(body), _over(body), _training(body).more))}."
    )


def facts(body: Mapping[str, Any], now_s: float) -> Iterator[Fact]:
    """The five."""
    nobody = "the Lighthouse" if body["kind"] == "lighthouse_away" else "nobody"
    who = _names(body["culprits"]) or _names(body["groups"]) or nobody
    hosts = _names(body["account"]["ran_on"])
    sure = "" if body["kind"] in ("by_hand", "lighthouse_away") else str(body["confidence"])
    yield Fact("who", who, ", ".join(one for one in (hosts, sure) if one), "idle")
    first_s, last_s = began_s(body), ended_s(body)
    yield Fact("since", time_of_day(first_s), f"{span(max(0.0, now_s - first_s))} ago", "idle")
    outcome = str(body["account"]["outcome"])
    yield Fact("done", _DONE.get(outcome, (outcome, "idle"))[0], _who_did(body),
               _DONE.get(outcome, (outcome, "idle"))[1])  # fmt: skip
    if last_s is None:
        yield Fact("over", "no", f"for {span(max(0.0, now_s - first_s))} by now", "bad")
    else:
        yield Fact("over", "yes", f"after {span(max(0.0, last_s - first_s))}", "good")
    yield _training(body)


_DONE: Final = {
    "evicted": ("evicted", "good"),
    "evicting": ("being evicted", "wait"),
    "failed": ("eviction failed", "bad"),
    "observed": ("nothing: observe mode", "start"),
    "held": ("nothing: held back", "away"),
    "passed": ("nothing to do", "idle"),
    "open": ("nothing yet", "wait"),
}


def _who_did(body: Mapping[str, Any]) -> str:
    account = body["account"]
    holds: Sequence[Mapping[str, Any]] = account["holds"]
    if account["outcome"] in ("evicted", "evicting", "failed"):
        return f"{_names(body['groups'])}, by {clean(account['decided_by'], 80)}"
    return f"by {plain(holds[-1]['guard'])}" if holds else ""


def _done(body: Mapping[str, Any]) -> str:
    account, groups = body["account"], _names(body["groups"])
    asked = moment_of(body["milestones"]["evict_asked_s"])
    waited_s = 0.0 if asked is None else asked - began_s(body)
    after = f"after {span(waited_s)} " if waited_s >= 0.05 else ""
    by, holds = clean(account["decided_by"], 80), account["holds"]
    match account["outcome"]:
        case "evicted":
            return f"{after}{by} evicted {groups}"
        case "evicting":
            return f"{after}{by} began to evict {groups}, which is under way"
        case "failed":
            return f"{after}{by} tried to evict {groups} and failed"
        case "observed":
            return f"in observe mode nobody was evicted ({groups} would have been)"
        case "held" if holds:
            return f"nobody was evicted: {clean(holds[-1]['reason'], 160)}"
    return "nobody was evicted"


def _over(body: Mapping[str, Any]) -> str:
    last_s = ended_s(body)
    return "it is not over" if last_s is None else f"it is over since {time_of_day(last_s)}"


def _training(body: Mapping[str, Any]) -> Fact:
    """Whether the job trains again: said by commits that somebody saw, and by nothing else."""
    marks = {name: moment_of(at_s) for name, at_s in body["milestones"].items()}
    resumed, back = marks.get("resumed_s"), marks.get("rejoined_s")
    others, groups = marks.get("survivor_commit_s"), _names(body["groups"])
    if resumed is None and back is None and others is None:
        return _unseen(body)
    if resumed is not None:
        after = span(max(0.0, resumed - began_s(body)))
        told = f"the job trains again with all its groups, {after} after it began"
        return Fact("training", "yes, all groups", told, "good")
    if back is not None:
        told = f"{groups} is back since {time_of_day(back)} and the job trains again"
        return Fact("training", "yes", told, "good")
    told = f"since {time_of_day(others or 0.0)}"
    if body["account"]["outcome"] in ("evicted", "evicting", "failed"):
        told = f"the other groups train {told}, without {groups} so far"
        return Fact("training", f"yes, without {groups}", told, "wait")
    return Fact("training", "yes", f"the job trains {told}", "good")


def _unseen(body: Mapping[str, Any]) -> Fact:
    """No commit was seen since it began."""
    if body["state"] != "resolved":
        return _still(body)
    if body["kind"] in ("straggler", "replica_lag"):
        return Fact("training", "yes", "the job was training all the while", "good")
    return Fact("training", "not known", "whether the job trains again was not seen", "away")


def _still(body: Mapping[str, Any]) -> Fact:
    waiting = int(body["waiting"])
    if body["severity"] == "critical":
        waits = f"{counted(waiting, 'rank')} {'waits' if waiting == 1 else 'wait'}"
        told = f"the job stands, {waits}" if waiting else "the job stands"
        return Fact("training", "no", told, "bad")
    return Fact("training", "yes, disturbed", "the job goes on, slower or at a risk", "wait")


def _names(names: Sequence[object]) -> str:
    shown = [clean(str(one), 80) for one in names[:_NAMED]]
    if len(names) > _NAMED:
        return f"{', '.join(shown)} and {len(names) - _NAMED:,} more"
    return " and ".join(shown) if len(shown) < 3 else f"{shown[0]}, {shown[1]} and {shown[2]}"


_ANSWER: Final = re.compile(
    r"(?:\A|; )([^\s;]{1,300}) answered ([0-9]{3}): (\{.{0,400}?\})(?=; |\Z)"
)
"""What a WorkerServer said, as `model.escalation` writes it."""
_KILLED: Final = "answered 500, as the Lighthouse does where the group's manager ends at once"
"""Instead of the error that TorchFT 0.2.0 says of a kill that has worked (facts/torchft.md)."""


def rung_words(row: Mapping[str, Any]) -> str:
    """What a rung says, for people: answers of WorkerServers are JSON, and one of the Lighthouse
    says that something went wrong where all went well.
    """
    said = str(row["detail"])
    worked = row["rung"] == "lighthouse_kill" and row.get("result") == "worked"
    if worked and said.removeprefix("worked: ").startswith("answered 500"):
        return _KILLED
    return _ANSWER.sub(_answered, said)


def _answered(found: re.Match[str]) -> str:
    start = "; " if found[0].startswith("; ") else ""
    try:
        said = json.loads(found[3])
    except (ValueError, RecursionError):
        return found[0]
    if not isinstance(said, dict):
        return found[0]
    if found[2] != "200":
        told = said.get("error")
        return f"{start}{found[1]} refused ({found[2]}): {told}" if told else found[0]
    signals, gone = said.get("signalled"), said.get("gone")
    if not isinstance(signals, list) or not isinstance(gone, bool):
        return found[0]
    how = " and then ".join(str(one)[:20] for one in signals[:4])
    if not signals:
        return f"{start}{found[1]} was gone already" if gone else f"{start}{found[1]} got no signal"
    started = said.get("started_gone")
    told = f", with {started} of its own" if type(started) is int and started > 0 else ""
    return f"{start}{found[1]} got {how} and is {'gone' if gone else 'not gone yet'}{told}"
