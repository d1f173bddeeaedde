"""A monitor without a Lighthouse: nothing that it shows speaks of one, or of evicting."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
import requests
import yaml

from lightkeeper.monitor.cli import main
from lightkeeper.monitor.model.incident import Incident, State
from lightkeeper.monitor.service import Service
from tests.docs.pages import ROOT
from tests.monitor.api import options
from tests.monitor.fakes import FakeFleet, wait_until

KEEPER = re.compile(
    "lighthouse|quorum|evict|pause(d| ev)|observe|held(:| for| back$)|_hold|heartbeat|guard",
    re.IGNORECASE,
)
SAID_ONCE = re.compile(r"No Lighthouse is configured.*--lighthouse URL|watch-only: .* configured")
"""Why it watches only, and what changes that."""
BY_HAND = re.compile("lightkeeper evict job")
"""The command beside the button `End the job`."""


@pytest.fixture
def watching(
    tmp_path: Path, fleet: FakeFleet, bare_environment: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Service, Incident]]:
    """One group of two ranks, and an incident: one has died."""
    monkeypatch.setenv("LIGHTKEEPER_TOKEN", "secret")
    with Service(options(tmp_path)) as service:
        ranks = [fleet.add("job", number, world_size=2) for number in (0, 1)]
        for rank in ranks:
            service.keeper._components.registry.register(rank.registration())
        service.keeper.tick()
        ranks[1].die()

        def fired() -> list[Incident]:
            service.keeper.tick()
            view = service.keeper.view
            assert view is not None
            return [i for i in view.incidents if i.state is State.FIRING and view.decisions]

        (incident,) = wait_until(fired, 10, "the incident fires")
        service.keeper.tick()
        yield service, incident


def spoken(text: str) -> list[str]:
    said = BY_HAND.sub("", SAID_ONCE.sub("", text))
    return [line.strip() for line in said.splitlines() if KEEPER.search(line)]


PAGES = ("/", "/?by=host", "/groups/job", "/ranks/job.0", "/hosts/node0", "/incidents", "/runs")


def test_no_page_does(watching: tuple[Service, Incident]) -> None:
    service, incident = watching
    for page in (*PAGES, f"/incidents/{incident.id}"):
        answer = requests.get(service.url + page, timeout=5, headers={"Accept": "text/html"})
        assert answer.status_code == 200, page
        html = re.sub(r"<(style|script|svg)[^>]*>.*?</\1>", "", answer.text, flags=re.DOTALL)
        assert spoken(unescape(re.sub(r"\s*<[^>]+>\s*", "\n", html))) == [], page


def test_no_series_does(watching: tuple[Service, Incident]) -> None:
    text = requests.get(watching[0].url + "/metrics", timeout=5).text
    assert "lightkeeper_incidents{" in text
    assert spoken(text) == []


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["get", "groups"],
        ["get", "ranks", "--wide"],
        ["get", "hosts"],
        ["policy", "show"],
        ["incidents", "list"],
        ["incidents", "show", "dead"],
    ],
    ids=" ".join,
)
def test_no_command_does(
    words: list[str], watching: tuple[Service, Incident], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--monitor", watching[0].url]) == 0
    out = capsys.readouterr().out
    assert out
    assert spoken(out) == []


# -- where shipped alerts lead ---------------------------------------------------------------------


def test_every_runbook_of_a_shipped_alert_is_a_section_of_the_monitors_page_and_of_the_manual(
    watching: tuple[Service, Incident],
) -> None:
    text = (ROOT / "dashboards/prometheus/alerts.yml").read_text()
    links = re.findall(r'runbook_url: "http://127.0.0.1:8470/runbooks#(\w+)"', text)
    assert len(links) == text.count("- alert:")
    html = requests.get(watching[0].url + "/runbooks", timeout=5).text
    manual = (ROOT / "docs/on-call.md").read_text().lower()
    for anchor in links:
        assert f'<section id="{anchor}"><h2>' in html
        assert f"\n### {anchor}\n" in manual
    assert '<a href="#lightkeeperincidentstays">' in html
    assert "](" not in html


def test_no_shipped_alert_that_can_fire_here_speaks_of_what_is_not_there(
    watching: tuple[Service, Incident],
) -> None:
    """Those of evictions, of the Lighthouse and of a gate read series that this monitor has not."""
    groups = yaml.safe_load((ROOT / "dashboards/prometheus/alerts.yml").read_text())["groups"]
    alerts = {alert["alert"]: alert for group in groups for alert in group["rules"]}
    exported = requests.get(watching[0].url + "/metrics", timeout=5).text
    silent = {
        name
        for name, alert in alerts.items()
        if any(
            f"\n{series}" not in exported
            for series in re.findall(
                r"lightkeeper_(?:lighthouse|paused|evictions|gate)\w*", alert["expr"]
            )
        )
    }
    assert silent == {f"Lightkeeper{name}" for name in (
        "EvictionFailed", "ManyEvictions", "PausedLong", "LighthouseDown", "GateUntaught",
    )}  # fmt: skip
    said = {
        name: spoken("\n".join(alert["annotations"].values())) for name, alert in alerts.items()
    }
    assert {name for name, lines in said.items() if lines} <= silent
