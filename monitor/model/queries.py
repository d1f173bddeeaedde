"""What Prometheus is asked about hosts: rows as a policy file writes them. Pure."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta, Struct, ValidationError, convert

from lightkeeper.worker_server.wire import Weight

QUERIES_MOST: Final = 100
"""In a policy file; each costs Prometheus a request every 15 s."""
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_ {}.-]{0,64}$")]


class PrometheusQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """One query; each series of its answer testifies against a host. `{label}` and `{value}` in
    `code`, `text` and `device` are the series' own.
    """

    code: Annotated[str, Meta(pattern=r"^[a-z0-9{][a-z0-9{}_-]{0,31}$")]
    query: Annotated[str, Meta(max_length=2000)]
    """In PromQL. `$run` is the age of the run, `$window` the same up to an hour. Empty: none; so
    a shipped row of this code is left out."""
    weight: Weight = Weight.CONTEXT
    text: Annotated[str, Meta(max_length=200)] = "{code}"
    device: Name = ""
    host: Name = ""
    """Label with the host's name; empty: the first of the usual ones that names a known host."""


def query_from(table: Any, where: str, problems: list[str]) -> PrometheusQuery | None:
    """One row; None when `problems` says what is wrong with it."""
    try:
        query = convert(table, PrometheusQuery)
    except ValidationError as exc:
        problems.append(f"{where}: {exc}")
        return None
    if isinstance(table, dict) and table.get("weight", query.weight) != query.weight:
        problems.append(f"{where}.weight: is {table['weight']!r}, expected {', '.join(Weight)}")
        return None
    return query
