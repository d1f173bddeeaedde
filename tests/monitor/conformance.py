"""Schemathesis over the monitor's API: valid and invalid data for every operation.

As `tests.worker_server.conformance`, whose docstring says what is left out. Also left out: what
changes something (it ends groups, and its bodies are tested one by one), and what goes to a rank.
`python -m tests.monitor.conformance` prints the findings of both APIs as JSON.
"""

from __future__ import annotations

import json

import schemathesis
from schemathesis.config import SchemathesisConfig

from tests.monitor.openapi import document, sample_app
from tests.worker_server import conformance


def look():
    config = SchemathesisConfig.from_dict({**conformance.CONFIG, "headers": {}})
    schema = schemathesis.openapi.from_dict(document(), config=config)
    schema.app = sample_app()
    return conformance.findings_of(schema.include(method="GET").exclude(path_regex="{what}"))


if __name__ == "__main__":
    apis = {"monitor": look(), "worker_server": conformance.look()}
    print(json.dumps({**apis, "seed": conformance.CONFIG["seed"]}))
