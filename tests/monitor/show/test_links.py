"""The links of the policy file are on pages of incidents, ranks and hosts, and in messages."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest

from lightkeeper.monitor.act.http import Fetcher
from lightkeeper.monitor.act.notices import Alertmanager, Message, NoticeFacts, Webhook, notices
from lightkeeper.monitor.decide.links import LinkTemplates
from lightkeeper.monitor.decide.rules import DEFAULT
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.rulebook import standing
from lightkeeper.monitor.show.web.server import create_app
from tests.changed import replace
from tests.monitor.api import app_context
from tests.monitor.doubles import HandClock
from tests.monitor.samples import incident, seen, snapshot, view

TEMPLATES = {
    "<b>GPUs & co": "https://grafana.example/d?host={host}&to={to_ms}",
    "trace": "https://jaeger.example/trace/{trace_id}",
}
FAULT = replace(incident(), hosts=("node 1",))
RULES = replace(standing(KeeperConfig()).current, policy=replace(DEFAULT, links=TEMPLATES))
LINK = re.compile(r'<a href="([^"]*)" rel="noreferrer">([^<]*)</a>')


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/incidents/inc-1", ["<b>GPUs & co", "trace"]),
        ("/ranks/rg_1.0", ["<b>GPUs & co"]),
        ("/hosts/node 1", ["<b>GPUs & co"]),
        ("/groups/rg_1", []),
    ],
)
def test_pages_have_those_links_that_are_known_there(
    path: str, names: list[str], fetcher: Fetcher
) -> None:
    shown = view(seen("rg_1", host="node 1"), incidents=(FAULT,), rules=RULES)
    context = app_context(HandClock(1000.0), view=lambda: shown, fetcher=fetcher)
    page = create_app(context).test_client().get(path)
    assert page.status_code == 200
    links = {unescape(name): unescape(url) for url, name in LINK.findall(page.text)}
    assert [name for name in links if name in TEMPLATES] == names
    if names:
        assert links[names[0]].startswith("https://grafana.example/d?host=node%201&to=")


def test_messages_and_json_have_those_of_the_incident() -> None:
    of_incident = LinkTemplates(TEMPLATES, snapshot()).of_incident
    (notice,) = notices(
        NoticeFacts(1000.0, (FAULT,), {}, links=of_incident), url="http://k", hold_s=10.0
    ).values()
    assert list(notice.links) == list(TEMPLATES)
    message = Message(notice, 1000.0)
    posted = Webhook("webhook", "http://hook").post([message])
    assert json.loads(posted.body or b"")["links"] == notice.links
    (alert,) = json.loads(Alertmanager("alertmanager", "http://am").post([message]).body or b"")
    gpus, trace = alert["annotations"]["links"].splitlines()
    assert gpus.startswith("<b>GPUs & co: https://grafana.example/d?host=node%201&to=")
    assert trace == f"trace: {notice.links['trace']}"
    without = Message(replace(notice, links={}), 1000.0)
    (alert,) = json.loads(Alertmanager("alertmanager", "http://am").post([without]).body or b"")
    assert "links" not in alert["annotations"]
