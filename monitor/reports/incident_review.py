"""What people said of an incident, and how to say it. Pure.

Without JavaScript there is the command; the script adds a button that asks for the token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from monitor.reports.incident_pieces import chip, utc
from monitor.reports.markup import element, escaped, words


def review(body: Mapping[str, Any]) -> Iterator[str]:
    """The judgement, or that there is none; and the command that gives one."""
    said = body["review"]
    if said is not None:
        note = f": {said['note']}" if said["note"] else ""
        tone = {"right": "good", "wrong": "bad"}.get(said["judgement"], "away")
        yield element("p", chip(f"judged {said['judgement']}", tone), " ",
                      escaped(f"by {said['by']}, {utc(said['at_s'])}{note}"))  # fmt: skip
    elif body["account"]["outcome"] in ("evicted", "evicting", "failed"):
        yield words("p", "Nobody has judged this eviction yet. What people say of evictions is how "
                    "its precision is known.")  # fmt: skip
    else:
        yield words("p", "Nobody has judged this incident yet.")
    command = (
        f"lightkeeper incidents {body['id']} --mark right|wrong|unclear --note WHY "
        "--token-file FILE"
    )
    shown = words(
        "pre", command, class_="commands", tabindex="0", role="group", aria_label="command"
    )
    yield element("div", shown, id="judge", data_incident=body["id"])
