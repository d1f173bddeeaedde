"""Links to what others know of an incident, a rank or a host: W&B, Loki, a GPU's panel, a trace.

The operator gives each a name and a template in the policy file, table `links`. What is filled in
comes from ranks, too: so it is quoted, bounded, and never part of the scheme or the host. A link is
left out if a part of it is not known. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlsplit

from lightkeeper.monitor.model.incident import Incident, trace_id
from lightkeeper.monitor.model.names import GroupName, Host, RankName
from lightkeeper.monitor.model.observation import Observation, Snapshot
from lightkeeper.worker_server.wire import TRACKERS

LINKS_MOST: Final = 16
_NAME_MAX_CHARS: Final = 40
_TEMPLATE_MAX_CHARS: Final = 2000
_VALUE_MAX_CHARS: Final = 256
_OF_RANK: Final = ("group", "rank", "host")
_OF_PLACE: Final = ("pod", "namespace", "node", "slurm_job_id")
PLACEHOLDERS: Final = (
    "job", "run", *_OF_RANK, *_OF_PLACE, "from_ms", "to_ms", "incident", "kind", "trace_id",
    *TRACKERS,
)  # fmt: skip
_PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)\}")
_ENDS_A_STRING: Final = frozenset("\"'`\\{}")
"""Never filled in: inside a query, as Loki's, a value with one of these would change the query."""
_AROUND_S: Final = 600.0
"""Before the fault and after its end; of a rank or host, six times as long before now."""


def link_problem(name: str, template: Any) -> str | None:
    """Why this cannot be a link; None: it can."""
    if not name.isprintable() or not 0 < len(name) <= _NAME_MAX_CHARS:
        return f"a name has 1 to {_NAME_MAX_CHARS} characters"
    if type(template) is not str or len(template) > _TEMPLATE_MAX_CHARS:
        return f"expected a URL of at most {_TEMPLATE_MAX_CHARS} characters"
    try:
        parts = urlsplit(template)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.username
    except ValueError:
        usable = False
    if not usable or "{" in parts.netloc or not template.isprintable() or " " in template:
        return "expected http://HOST/... or https://HOST/..., without a password"
    unknown = [word for word in _PLACEHOLDER.findall(template) if word not in PLACEHOLDERS]
    return f"{{{unknown[0]}}} is none of {', '.join(PLACEHOLDERS)}" if unknown else None


class LinkTemplates:
    """By the templates, from what one snapshot knows."""

    def __init__(self, templates: Mapping[str, str], snapshot: Snapshot) -> None:
        self._templates, self._snapshot = templates, snapshot
        seen = [o for o in snapshot.observations if o.report and o.report.trackers]
        self._tracked = seen if templates else []

    def of_incident(self, incident: Incident) -> dict[str, str]:
        """An incident of an earlier run has only its own facts: ranks report the current run."""
        end_s = incident.ended_s or self._snapshot.now_s
        run, facts = self._snapshot.run, {"job": self._job, "run": incident.run}
        if run is not None and incident.run == run.id:
            suspects = map(self._snapshot.by_rank.get, incident.suspects)
            same = (o for o in suspects if o and o.identity.incarnation in incident.incarnations)
            facts = self._facts(next(same, None), incident.groups)
        lists = (incident.groups, incident.suspects, incident.hosts)
        facts |= {n: some[0] for n, some in zip(_OF_RANK, lists, strict=True) if some}
        facts |= {"incident": incident.id, "kind": incident.kind, "trace_id": trace_id(incident.id)}
        return self._filled(facts, incident.began_s - _AROUND_S, end_s + _AROUND_S)

    def of_rank(self, rank: RankName) -> dict[str, str]:
        seen = self._snapshot.by_rank.get(rank)
        return {} if seen is None else self._now(self._facts(seen, (seen.identity.group,)))

    def of_host(self, host: Host) -> dict[str, str]:
        return self._now({**self._facts(None, ()), "host": host})

    def _now(self, facts_known: Mapping[str, str]) -> dict[str, str]:
        now_s = self._snapshot.now_s
        return self._filled(facts_known, now_s - 6 * _AROUND_S, now_s)

    @property
    def _job(self) -> str:
        return next((seen.identity.job for seen in self._snapshot.observations), "")

    def _facts(self, seen: Observation | None, groups: Sequence[GroupName]) -> dict[str, str]:
        """Facts of the run, and of a rank if one is meant. What the rank itself does not report
        comes from its group, or from the job: often only rank 0 has a run.
        """
        run = self._snapshot.run
        facts = {"job": self._job, "run": "" if run is None else run.id}
        near = [o for o in self._tracked if o.identity.group in groups]
        for other in (*self._tracked[:1], *near[:1], seen):
            facts |= {} if other is None or other.report is None else other.report.trackers
        if seen is not None:
            who = seen.identity
            facts |= {name: who.place[name] for name in _OF_PLACE if name in who.place}
            facts |= zip(_OF_RANK, (who.group, who.rank, who.host), strict=True)
        return facts

    def _filled(self, facts_known: Mapping[str, str], from_s: float, to_s: float) -> dict[str, str]:
        values = {**facts_known, "from_ms": f"{from_s * 1e3:.0f}", "to_ms": f"{to_s * 1e3:.0f}"}
        fit = {name: quote(text, safe="") for name, text in values.items() if _fits(text)}
        return {
            name: _PLACEHOLDER.sub(lambda word: fit[word[1]], template)
            for name, template in self._templates.items()
            if fit.keys() >= {*_PLACEHOLDER.findall(template)}
        }


def _fits(text: str) -> bool:
    return 0 < len(text) <= _VALUE_MAX_CHARS and _ENDS_A_STRING.isdisjoint(text)
