"""The view that routes answer from, and which incidents of it a request asks for."""

from __future__ import annotations

from flask import request

from monitor.app.answers import Refusal
from monitor.app.desk import the_desk
from monitor.audit.choose import Choice, ChoiceError, NoSuchIncidentError, find
from monitor.incident import Incident
from monitor.view import View


def the_view() -> View:
    """The latest view.

    Raises:
        Refusal: there is none yet.
    """
    view = the_desk().view()
    if view is None:
        raise Refusal(503, "the monitor has not looked yet: try again in a second")
    return view


def chosen(view: View) -> Choice:
    """`?since=7d&kind=straggler&group=rg_1&state=open`.

    Raises:
        Refusal: one of them means nothing.
    """
    words = request.args
    try:
        return Choice.of(
            words.get("since"), words.get("kind"), words.get("group"), view.snapshot.now_s,
            words.get("state"),
        )  # fmt: skip
    except ChoiceError as exc:
        raise Refusal(400, str(exc)) from exc


def one_of(view: View, prefix: str) -> Incident:
    """The incident that a path names.

    Raises:
        Refusal: none, or several.
    """
    try:
        return find(view.incidents, prefix)
    except NoSuchIncidentError as exc:
        raise Refusal(404, str(exc)) from exc
    except ChoiceError as exc:
        raise Refusal(400, str(exc)) from exc
