"""What people said of an incident, and how to say it. Pure.

Without JavaScript there is the command; with it, buttons that ask for a note and the token (the
dialog of every change: `static/page-acts.js`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from monitor.reports.incident_pieces import chip, page_path, utc
from monitor.reports.markup import element, escaped, words

_TONES: Final = {"right": "good", "wrong": "bad"}
_BUTTONS: Final = (
    ("right", "Right", "It was what the incident says, and what was done was right."),
    ("wrong", "Wrong", "Nothing of this should have been done. An eviction counts as a cost then."),
    ("unclear", "Cannot tell", "Nobody can say whether it was right."),
)


def review(body: Mapping[str, Any], why_not: str = "") -> Iterator[str]:
    """The judgement, or that there is none; and how to give one, unless `why_not`."""
    said = body["review"]
    if said is not None:
        note = f": {said['note']}" if said["note"] else ""
        by = f"by {said['by']}, {utc(said['at_s'])}{note}"
        tone = _TONES.get(said["judgement"], "away")
        yield element("p", chip(f"judged {said['judgement']}", tone), " ", escaped(by))
    elif body["account"]["outcome"] in ("evicted", "evicting", "failed"):
        yield words(
            "p",
            "Nobody has judged this eviction yet. How often evictions are right is known by what "
            "people say here.",
        )
    else:
        yield words("p", "Nobody has judged this incident yet.")
    if why_not:
        yield words("p", f"It cannot be judged here: {why_not}", class_="meta")
        return
    buttons = (_button(body["id"], *one) for one in _BUTTONS)
    yield element("p", *buttons, class_="buttons script")
    command = (
        f"lightkeeper incidents {body['id']} --mark right|wrong|unclear --note WHY "
        "--token-file FILE"
    )
    yield words("pre", command, class_="commands", tabindex="0", role="group", aria_label="command")


def _button(incident_id: str, verdict: str, label: str, what: str) -> str:
    return words(
        "button",
        label,
        type="button",
        data_key=f"Judge it: {label.lower()}",
        data_method="POST",
        data_path=f"/v1{page_path(incident_id)}/review",
        data_what=what,
        data_more=json.dumps({"verdict": verdict}),
        data_author="required",
        data_reason="" if verdict == "wrong" else "optional",
    )
