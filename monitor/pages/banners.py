"""What a person must know before anything else: pause, observe mode, standby, troubles. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from monitor.lease import Standing
from monitor.pages.context import Context
from monitor.pages.tree import Node, el
from monitor.pages.wording import utc
from monitor.reports.incident_pieces import plain
from monitor.reports.wording import sentence
from monitor.snapshot import LighthouseAway, Pause

_MOST: Final = 12


def banners(context: Context) -> Node:
    """All of them, in one place."""
    said = list(_said(context))
    shown = [
        el("p", el("strong", f"{head}: " if text else head), text, *more, class_=f"banner {tone}",
           data_key=head + text)
        for tone, head, text, more in said[:_MOST]
    ]  # fmt: skip
    if len(said) > _MOST:
        rest = f"And {len(said) - _MOST} more: /v1/snapshot"
        shown.append(el("p", rest, class_="banner wait", data_key="rest"))
    return el("div", *shown, id="banners")


_Banner = tuple[str, str, str, tuple[Node | str, ...]]


def _said(context: Context) -> Iterator[_Banner]:
    view = context.view
    snapshot = view.snapshot
    if view.standing is not None and not view.standing.active:
        yield _standby(view.standing)
    if snapshot.pause is not None:
        yield _paused(snapshot.pause)
    window = None if view.rules is None else view.rules.policy.window(context.now_s)
    if window is not None:
        told = f"'{window[0].name}' until {utc(window[1])}: nobody is evicted but by hand."
        yield "info", "Maintenance window", told, ()
    if view.observe:
        told = "the monitor says what it would evict, and evicts nothing."
        yield "info", "Observe mode", told, ()
    if isinstance(snapshot.lighthouse, LighthouseAway):
        tone = "wait" if snapshot.lighthouse.missed else "info"
        yield tone, "The Lighthouse cannot be seen", sentence(snapshot.lighthouse.reason), ()
    for kind, why in sorted(view.result.unknown.items()):
        told = f"{why}. Such a fault is neither there nor absent: nobody has looked."
        yield "away", f"Unknown: {plain(kind)}", told, ()
    for trouble in view.troubles:
        yield "wait", "Trouble", sentence(trouble), ()


def _paused(pause: Pause) -> _Banner:
    until = "until a person resumes" if pause.until_s is None else f"until {utc(pause.until_s)}"
    told = f"{pause.reason}. Nobody is evicted but by hand."
    return "bad big", f"Paused by {pause.author} {until}", told, ()


def _standby(standing: Standing) -> _Banner:
    if standing.holder is None:
        told = "and none is active yet: nothing is evicted."
        return "info", "This monitor stands by", told, ()
    since = "" if standing.since_s is None else f" since {utc(standing.since_s)}"
    told = f"it changes nothing. {standing.holder} is active{since}; what it wrote is shown here. "
    url = standing.url or ""
    linked = url.startswith(("http://", "https://"))
    return "info", "This monitor stands by", told, (el("a", url, href=url),) if linked else ()
