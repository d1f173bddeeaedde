"""All incidents as a page: what they came to, which to show, and a row for each. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from monitor.audit.amounts import bounds
from monitor.detectors.verdict import Kind
from monitor.reports.document import document
from monitor.reports.incident_pieces import chip, lasting, page_path, plain, table, utc
from monitor.reports.incident_words import began_s, ended_s, facts, title
from monitor.reports.markup import element, escaped, words
from monitor.reports.wording import counted, sentence

STYLE: Final = "/static/incident.css"
STATES: Final = ("open", "pending", "firing", "evicting", "resolved")
_SPANS: Final = (("", "ever"), ("1h", "last hour"), ("1d", "last day"), ("7d", "last 7 days"),
                 ("4w", "last 4 weeks"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """What the form asks for, as it was written."""

    kind: str = ""
    group: str = ""
    state: str = ""
    since: str = ""

    @property
    def anything(self) -> bool:
        """Whether not all are asked for."""
        return bool(self.kind or self.group or self.state or self.since)


def incidents_page(
    bodies: Sequence[Mapping[str, Any]],
    *,
    now_s: float,
    asked: Asked,
    total: int,
    remembered: int,
    totals: Mapping[str, Any] | None,
    wrong: str = "",
) -> str:
    """The newest of them; `total` fit what is asked for, of `remembered` in all."""
    return document(
        "Incidents",
        element("section", words("h1", "Incidents"), _form(asked), _wrong(wrong),
                "" if totals is None else _totals(totals), id="choose"),
        element("section", *_found(bodies, now_s, asked, total, remembered), id="found"),
        styles=(STYLE,),
        here="/incidents",
    )  # fmt: skip


def _wrong(wrong: str) -> str:
    return words("p", sentence(wrong), class_="banner bad", role="alert") if wrong else ""


def _form(asked: Asked) -> str:
    kinds = [("", "all kinds"), *((str(kind), plain(kind)) for kind in Kind)]
    states = [("", "open and over"), *((one, one) for one in STATES)]
    spans = list(_SPANS)
    if asked.since and asked.since not in dict(spans):
        spans.append((asked.since, asked.since))
    group = element(
        "label",
        words("span", "group"),
        f'<input name="group" value="{escaped(asked.group, 128)}" size="12" maxlength="128" '
        'autocomplete="off" placeholder="all groups">',
    )
    return element(
        "form",
        _select("kind", "kind", kinds, asked.kind),
        group,
        _select("state", "state", states, asked.state),
        _select("since", "since", spans, asked.since),
        words("button", "Show"),
        words("a", "show all", href="/incidents") if asked.anything else "",
        method="get",
        action="/incidents",
        class_="choose",
        role="search",
    )


def _select(name: str, label: str, options: Sequence[tuple[str, str]], chosen: str) -> str:
    made = (
        words("option", text, value=value, selected="" if value == chosen else None)
        for value, text in options
    )
    select = f'<select name="{name}">{"".join(made)}</select>'
    return element("label", words("span", label), select)


def _totals(totals: Mapping[str, Any]) -> str:
    """As `GET /v1/audit` tells them."""
    told = (
        ("fired", f"{totals['incidents']:,}", "incidents that were sure"),
        ("evictions", f"{totals['evictions']:,}", "of replica groups"),
        ("lost", bounds(totals["lost"]), _of(totals["lost"])),
        ("saved", bounds(totals["saved"]), _of(totals["saved"])),
    )
    shown = (
        element(
            "div",
            words("dt", name),
            element("dd", words("b", word), words("span", about, class_="more")),
        )
        for name, word, about in told
    )  # fmt: skip
    return element("dl", *shown, class_="five totals")


def _of(amount: Mapping[str, Any]) -> str:
    missing = f"; not known of {amount['unknown']}" if amount["unknown"] else ""
    return f"rank-seconds{missing}"


def _found(
    bodies: Sequence[Mapping[str, Any]], now_s: float, asked: Asked, total: int, remembered: int
) -> Iterator[str]:
    if not bodies:
        yield element("div", *_empty(asked, remembered), class_="none")
        return
    shown = f"the newest {len(bodies)} of {total:,}" if total > len(bodies) else f"{total:,}"
    yield words("p", f"{shown} shown, newest first", class_="meta")
    heads = ("state", "what happened", "first seen", "lasted", "what was done", "others lost")
    yield table(heads, (_row(one, now_s) for one in bodies))


def _row(one: Mapping[str, Any], now_s: float) -> tuple[str, ...]:
    first_s, last_s, began = one["milestones"]["first_seen_s"], ended_s(one), began_s(one)
    did = {fact.name: fact for fact in facts(one, now_s)}
    end_s = now_s if last_s is None else last_s
    lasted = lasting(max(0.0, end_s - began)) + ("" if last_s is not None else " by now")
    training = "" if last_s is not None else element("div", escaped(did["training"].more))
    return (
        chip(one["state"]) + " " + chip(one["severity"]),
        element("a", element("b", escaped(title(one), 200)), href=page_path(one["id"]))
        + words("div", sentence(str(one["says"])), class_="why"),
        escaped(f"{lasting(max(0.0, now_s - first_s))} ago")
        + words("div", utc(first_s), class_="at"),
        escaped(lasted),
        chip(did["done"].word, did["done"].tone)
        + words("div", did["done"].more, class_="why") + training,
        escaped(bounds(one["account"]["lost_by_others"])),
    )  # fmt: skip


def _empty(asked: Asked, remembered: int) -> Iterator[str]:
    if asked.anything and remembered:
        yield words("p", f"None of {counted(remembered, 'incident')} fits this.")
        yield element("p", words("a", "Show all", href="/incidents"), ", or ask for a longer time.")
        return
    yield words("p", "No incident so far: nothing was seen that went wrong.")
    yield words(
        "p",
        "One appears here as soon as a rank hangs, dies, is slower than its peers, calls another "
        "collective or holds wrong numbers, or the Lighthouse is away: first as pending, then "
        "firing when it is sure. The page of each tells what was done about it, and why.",
    )
    yield element("p", words("a", "See how the fleet is", href="/"), ".")
