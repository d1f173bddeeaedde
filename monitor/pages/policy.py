"""The policy that holds, in one line and, unfolded, in full. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from monitor.pages.context import Context
from monitor.pages.table import Cell, nothing, section, table
from monitor.pages.tree import Node, el
from monitor.pages.wording import figure, utc
from monitor.policy_json import effective_to_json, learned_to_json
from monitor.reports.incident_pieces import plain
from monitor.reports.wording import counted

_SEVERITIES: Final = ("info", "warning", "critical")


def policy(context: Context) -> Node:
    """Folded, with a summary that says what is done about which fault."""
    rules = context.view.rules
    if rules is None:
        return section("policy", "Policy", nothing("This monitor has no policy."))
    told = effective_to_json(rules, context.now_s)
    learned = learned_to_json(rules.config, context.view.result.learned)
    return section(
        "policy",
        "Policy",
        el(
            "details",
            el("summary", _line(told, learned)),
            *(el("p", one, class_="meta") for one in _facts(told, learned)),
            table(("fault", *_SEVERITIES), _actions(told["actions"]), "What is done about faults"),
            table(("option", "value", "said by"), _options(told), "Options"),
            _windows(told["maintenance"]),
            class_="policy",
        ),
    )


def _line(told: Mapping[str, Any], learned: Mapping[str, Any]) -> str:
    kinds: dict[str, list[str]] = {}
    for kind, row in told["actions"].items():
        said = " / ".join(dict.fromkeys(plain(row[one]) for one in _SEVERITIES))
        kinds.setdefault(said, []).append(plain(kind))
    done = "; ".join(f"{said}: {', '.join(some)}" for said, some in kinds.items())
    mode = "Observes only" if told["mode"] == "observe" else "Acts"
    used = sum(learned["evictions_last_hour"].values())
    most = told["guards"]["budget_per_hour"]["value"]
    least = counted(learned["min_replicas"]["in_force"], "group")
    return f"{mode}; {done}; {used} of {most} evictions this hour, never below {least}"


def _facts(told: Mapping[str, Any], learned: Mapping[str, Any]) -> Iterator[str]:
    loaded = f", loaded {utc(told['loaded_s'])}" if told["loaded_s"] else ""
    yield f"{told['source'] or 'No file: the defaults'}{loaded}"
    least, cost = learned["min_replicas"], learned["eviction_cost_s"]
    if least["lighthouse"] is not None:
        yield (f"Min replicas {least['in_force']} (configured {least['configured']}, "
               f"the Lighthouse's own {least['lighthouse']})")  # fmt: skip
    measured = f"measured on {cost['evictions']}" if cost["evictions"] else "as configured"
    yield f"An eviction costs {figure(cost['in_force'])} fleet seconds, {measured}"
    used = learned["evictions_last_hour"]
    if used:
        yield "Evictions in the last hour: " + ", ".join(f"{one}: {n}" for one, n in used.items())


def _actions(actions: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Cell, ...]]]:
    for kind, row in actions.items():
        yield kind, (plain(kind), *(plain(row[one]) for one in _SEVERITIES))


def _options(told: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Cell, ...]]]:
    for name, one in {**told["guards"], **told["thresholds"]}.items():
        if one["from"] != "default" or name in told["guards"]:
            yield name, (name, figure(one["value"]), one["from"])


def _windows(windows: list[dict[str, Any]]) -> Node | None:
    if not windows:
        return None
    rows = [
        (str(n), (str(one["name"]), ", ".join(one.get("days") or ["once"]),
                  f"{one['from']} to {one['to']} UTC"))
        for n, one in enumerate(windows)
    ]  # fmt: skip
    return table(("maintenance", "days", "when"), rows, "Maintenance windows")
