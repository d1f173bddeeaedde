"""Routes of the policy and of the big red switch."""

from __future__ import annotations

import time
from typing import Any

from flask import Blueprint, Response

from monitor.app.answers import Refusal, answer, json_body, text_of
from monitor.app.changing import guard, hours_of
from monitor.app.desk import the_desk
from monitor.pausing import PauseSwitch, pause_to_json
from monitor.policy.reading import PolicyError
from monitor.policy_json import effective_to_json, learned_to_json
from monitor.view import SCHEMA

policy = Blueprint("policy", __name__)
"""Reading it: no token."""
ruling = Blueprint("ruling", __name__)
"""Changing it: as everything that changes."""
ruling.before_request(guard)


@policy.get("/v1/policy")
def show() -> Response:
    """The policy that holds, where it comes from, and what was learned beside it."""
    return answer(_body())


@ruling.post("/v1/policy/reload")
def reload() -> Response:
    """Read the policy file again; it holds from the next tick on."""
    rules = the_desk().rules
    if rules is None:
        raise Refusal(409, "this monitor has no policy to reload")
    body = json_body()
    author = text_of(body, "author", 100) if "author" in body else "a person"
    try:
        rules.reload(time.time(), author)
    except PolicyError as exc:
        told = {"error": "nothing has changed: " + "; ".join(exc.problems)}
        return answer({**told, "problems": list(exc.problems)}, 400)
    return answer(_body())


@ruling.post("/v1/pause")
def pause() -> Response:
    """Evict nobody from now on, but by hand."""
    body = json_body()
    author = text_of(body, "author", 100) if "author" in body else "a person"
    made = _switch().press(text_of(body, "reason"), author, hours_of(body))
    return answer({"schema": SCHEMA, "pause": pause_to_json(made)})


@ruling.delete("/v1/pause")
def resume() -> Response:
    """Evict again."""
    ended = _switch().release()
    if ended is None:
        raise Refusal(404, "nothing is paused")
    return answer({"schema": SCHEMA, "ended": pause_to_json(ended)})


def _switch() -> PauseSwitch:
    switch = the_desk().pause
    if switch is None:
        raise Refusal(409, "this monitor cannot be paused")
    return switch


def _body() -> dict[str, Any]:
    desk, view = the_desk(), the_desk().view()
    rules, pause = desk.rules, None if desk.pause is None else desk.pause.current()
    if rules is None:
        raise Refusal(404, "this monitor has no policy")
    held = rules.current
    learned = {} if view is None else learned_to_json(held.config, view.result.learned)
    return {
        "schema": SCHEMA,
        **effective_to_json(held, desk.clock.now_s()),
        "problems": list(rules.problems),
        "pause": None if pause is None else pause_to_json(pause),
        "learned": learned,
    }
