"""Schemathesis over the whole application: valid and invalid data for every operation.

All checks but `ignored_auth`: that one breaks over WSGI (it passes `max_redirects` to werkzeug),
and test_guard.py holds those rules. The phase of linked requests is off: no answer names another
operation. `python -m tests.monitor.conformance` prints the findings, and those of the monitor.
"""

from __future__ import annotations

import random

import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema

from tests.deep import DEEP, EXPLORES
from tests.openapi import document
from tests.worker_server.boxes import WITH_TOKEN, FakeBox, app_of

CONFIG = {
    "seed": random.SystemRandom().getrandbits(32) if EXPLORES else 7,
    "headers": WITH_TOKEN,
    "generation": {"max-examples": 5 * DEEP, "database": "none"},
    "phases": {"stateful": {"enabled": False}, "coverage": {"enabled": EXPLORES}},
    "checks": {"ignored_auth": {"enabled": False}},
}


def look():
    schema = schemathesis.openapi.from_dict(document(), config=SchemathesisConfig.from_dict(CONFIG))
    schema.app = app_of(FakeBox())
    return findings_of(schema)


def findings_of(schema):
    checked, findings = 0, []
    for event in from_schema(schema).execute():
        if isinstance(event, events.NonFatalError | events.FatalError):
            findings.append(str(vars(event)))
        if not isinstance(event, events.ScenarioFinished | events.FuzzScenarioFinished):
            continue
        for case, checks in event.recorder.checks.items():
            checked += len(checks)
            findings += [
                f"{event.label} {check.name} {event.recorder.interactions[case].request.uri}"
                for check in checks
                if check.status != "success"
            ]
    return {"checked": checked, "findings": findings}
