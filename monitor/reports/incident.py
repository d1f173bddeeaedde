"""One incident as a page: its story from top to bottom, readable without JavaScript. Pure.

Made from the incident's JSON, as `GET /v1/incidents/ID` answers it, and from the stacks in its
evidence. What comes from ranks, the Lighthouse and people is text and never markup (`markup`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from monitor.reports.document import document
from monitor.reports.incident_course import course
from monitor.reports.incident_deeds import (
    decided,
    evictions,
    holds,
    intervals,
    outcome,
    similar,
)
from monitor.reports.incident_evidence import Access, Stacks, evidence_sections, links
from monitor.reports.incident_pieces import (
    chip,
    group_link,
    host_link,
    listed,
    page_path,
    plain,
    rank_link,
    section,
    time_of_day,
    utc,
)
from monitor.reports.incident_words import facts, sentence_of, title
from monitor.reports.markup import element, escaped, words
from monitor.reports.wording import sentence

STYLE: Final = "/static/incident.css"
SCRIPT: Final = "/static/incident.js"
_CULPRITS, _GROUPS, _FACTS = 24, 24, 40
_GLYPHS: Final = {"good": "✓", "bad": "✗", "wait": "…", "away": "?"}
_SINCE: Final = re.compile(r"\bsince ([0-9]{10})\b")
NO_EVIDENCE: Final = Stacks()
READER: Final = Access(allowed=True)


def incident_page(
    body: Mapping[str, Any],
    *,
    now_s: float,
    stacks: Stacks = NO_EVIDENCE,
    access: Access = READER,
    earlier: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The whole document."""
    sections = [
        _story(body, now_s, stacks),
        _course(body, now_s),
        section("who", "Who caused it, and who waited", *_who(body)),
        *evidence_sections(body, stacks, access),
        section("done", "What was done", *evictions(body)),
        section("decisions", "Who decided", *decided(body)),
        section("holds", "What held it back", *holds(body["account"]["holds"])),
        section("outcome", "What came of it, by lightkeeper's own account", *outcome(body)),
        section("earlier", "Earlier on the same hosts and groups", *similar(earlier, now_s)),
        section("more", "More", element("p", *links(body, access, f"/v1{page_path(body['id'])}"))),
    ]
    return document(title(body), *sections, script=SCRIPT, styles=(STYLE,), here="/incidents")


def _story(body: Mapping[str, Any], now_s: float, stacks: Stacks) -> str:
    """What a person reads in ten seconds."""
    live = "open" if body["state"] != "resolved" else "followed"
    if body["state"] == "resolved" and body["account"]["final"]:
        live = "over"
    return element(
        "section",
        words("h1", sentence(str(body["says"]))),
        element(
            "p",
            chip(body["state"]), " ", chip(body["severity"]), " ",
            escaped(f"{plain(body['kind'])}, {body['id']}, "
                    f"{utc(body['milestones']['first_seen_s'])}"),
            class_="meta",
        ),
        words("p", str(body["next"]), class_="sentence") if live == "open" else "",
        words("p", sentence_of(body), class_="sentence"),
        element("dl", *(_fact(one.name, one.word, one.more, one.tone)
                        for one in facts(body, now_s)), class_="five"),
        id="story",
        data_live=live,
        data_stamp=stacks.stamp or None,
        data_kept="yes" if stacks.kept else None,
    )  # fmt: skip


def _fact(name: str, word: str, more: str, tone: str) -> str:
    glyph = _GLYPHS.get(tone)
    mark = "" if glyph is None else words("span", glyph, aria_hidden="true", class_="glyph") + " "
    told = words("span", more, class_="more") if more else ""
    return element(
        "div",
        words("dt", _ASKED[name]),
        element("dd", element("b", mark, escaped(word, 200)), told),
        class_=tone,
    )


_ASKED: Final = {
    "who": "Who?", "since": "Since when?", "done": "What was done?", "over": "Is it over?",
    "training": "Does the job train?",
}  # fmt: skip


def _course(body: Mapping[str, Any], now_s: float) -> str:
    about = (
        "What happened, and what the job did meanwhile, as far as commits were seen. "
        "Seconds count from when the fault began."
    )
    parts = body["account"]["intervals"]
    table = element("details", words("summary", "How long each part took"), intervals(parts),
                    data_key="intervals")  # fmt: skip
    return section("course", "What happened when", course(body, now_s), table, about=about)


def _who(body: Mapping[str, Any]) -> Iterator[str]:
    account, culprits = body["account"], body["culprits"]
    facts_of: list[tuple[str, str]] = [
        ("culprits", _links(culprits, rank_link, _CULPRITS) or "nobody is accused"),
        ("their groups", _links(body["groups"], group_link, _GROUPS)),
        ("on hosts", _links(account["ran_on"], host_link, _GROUPS)),
        (
            "waited for it",
            _links(body["victims"], rank_link, _CULPRITS, body["victim_count"]) or "nobody",
        ),
    ]
    if culprits:
        facts_of.append(("confidence", escaped(body["confidence"])))
    facts_of += [
        (escaped(f"{rank} now", 200), escaped(told)) for rank, told in body["seen"].items()
    ]
    seen = list(body["evidence"].items())
    facts_of += [(escaped(name, 200), escaped(_dated(told))) for name, told in seen[:_FACTS]]
    if len(seen) > _FACTS:
        facts_of.append(("and", f"{len(seen) - _FACTS} more: as JSON"))
    shown = [(name, told) for name, told in facts_of if told]
    yield element("dl", *(element("dt", name) + element("dd", told) for name, told in shown),
                  class_="evidence")  # fmt: skip


def _dated(text: object) -> str:
    """Detectors write moments as Unix times."""
    return _SINCE.sub(lambda found: f"since {time_of_day(float(found[1]))}", str(text))


def _links(names: Sequence[str], link: Any, at_most: int, total: int = 0) -> str:
    return listed([link(str(one)) for one in names[:at_most]], total or len(names))
