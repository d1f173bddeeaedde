"""A token of one replica group: worth no more than the ranks of that group."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightkeeper.monitor.act.http import Fetcher, Tokens
from lightkeeper.monitor.act.poller import Poller
from lightkeeper.monitor.commands.command import CommandError
from lightkeeper.monitor.commands.run import read_group_tokens
from lightkeeper.monitor.model.observation import Unreachable
from lightkeeper.monitor.service import Service, StartError
from lightkeeper.worker_server.wire import HostEntry, HostReport, to_json
from tests.monitor.api import TOKEN, Api, options
from tests.monitor.fakes import FakeFleet, page
from tests.security.test_registration import IDENTITY, register

GROUPS = {"rg_0": "zero", "rg_1": "first", "0": "zero"}
ZERO = {"Authorization": "Bearer zero"}


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Api]:
    with Service(options(tmp_path, group_tokens=GROUPS, closed_reads=True)) as made:
        yield Api(made)


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One monitor for all whom it refuses."""
    folder = tmp_path_factory.mktemp("refusing")
    with Service(options(folder, group_tokens=GROUPS, closed_reads=True)) as made:
        yield Api(made)


def names(api: Api) -> list[str]:
    return sorted(target.rank for target in api.service.keeper._components.registry.targets())


@pytest.mark.parametrize(
    "who",
    [{"group": "rg_1"}, {"group": "rg_9"}, {"group": "rg_0 "}, {"group": "RG_0"},
     {"group": "rg_1", "launched_as": "rg_0"}, {"group": "rg_0", "launched_as": "rg_1"},
     {"group": "rg_0", "launched_as": "rg_9"}],
    ids=str,
)  # fmt: skip
def test_with_a_groups_token_no_rank_of_another_group_registers(
    refusing: Api, who: dict[str, Any]
) -> None:
    assert register(refusing, "http://10.0.0.1:9000", ZERO, **who) in (400, 403)
    assert names(refusing) == []


def test_a_groups_ranks_register_with_its_token_and_the_monitors_does_everything(
    groups: Api,
) -> None:
    assert register(groups, "http://10.0.0.1:9000", ZERO) == 200
    assert register(groups, "http://10.0.0.1:9000", ZERO, launched_as="0") == 200
    assert register(groups, "http://10.0.0.2:9000", group="rg_1") == 200
    assert names(groups) == ["rg_0.0", "rg_1.0"]
    for group, status in (("rg_1", 403), ("rg_0", 200)):
        path = f"/v1/register/{group}.0?incarnation=one"
        assert groups.call("DELETE", path, headers=ZERO).status_code == status
    assert names(groups) == ["rg_1.0"]
    assert groups.call("DELETE", path.replace("rg_0", "rg_1"), headers=TOKEN).status_code == 200
    assert names(groups) == []


@pytest.mark.parametrize("path", ["x", ".", "..0", "%2e", "rg_1%2e0", "rg_0.0%00", "\u0661"])
def test_no_odd_name_is_given_back_with_a_groups_token(groups: Api, path: str) -> None:
    assert register(groups, "http://10.0.0.2:9000", group="rg_1") == 200
    answer = groups.call("DELETE", f"/v1/register/{path}?incarnation=one", headers=ZERO)
    assert answer.status_code in (403, 404, 200)
    assert names(groups) == ["rg_1.0"]


def test_a_rank_whose_managers_name_the_token_is_not_for_goes_on_under_its_launchers(
    groups: Api,
) -> None:
    who = {**IDENTITY, "group": "other", "launched_as": "rg_0"}
    body = {"schema": 1, "identity": who, "url": "http://10.0.0.1:9000", "lease_s": 15.0}
    answer = groups.call("POST", "/v1/register", data=json.dumps(body), headers=ZERO)
    assert (answer.status_code, answer.json()["refused_name"]) == (403, "other")


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/groups/rg_0/evict"), ("PUT", "/v1/quarantine/node1"),
     ("PUT", "/v1/quarantine/groups/rg_0"), ("DELETE", "/v1/quarantine/node1"),
     ("DELETE", "/v1/quarantine/groups/rg_0"), ("POST", "/v1/pause"), ("DELETE", "/v1/pause"),
     ("POST", "/v1/policy/reload"), ("GET", "/v1/ranks/rg_0.0/stacks"),
     ("GET", "/v1/incidents/x/bundle")],
)  # fmt: skip
def test_a_groups_token_evicts_holds_out_lets_in_and_reads_nothing(
    refusing: Api, method: str, path: str
) -> None:
    body = {"reason": "x"}
    assert refusing.call(method, path, json=body, headers=ZERO).status_code == 401
    assert refusing.call(method, path, json=body, headers=TOKEN).status_code not in (401, 403)


def test_a_launcher_asks_for_admission_with_any_token_or_none(groups: Api) -> None:
    answer = groups.call("PUT", "/v1/quarantine/h", json={"reason": "x"}, headers=TOKEN)
    assert answer.status_code == 200
    for headers in ({}, ZERO, TOKEN):
        for group in ("rg_0", "rg_1"):
            said = groups.call("GET", f"/v1/admission?host=h&group={group}", headers=headers)
            assert (said.status_code, said.json()["admit"]) == (200, False)


def test_the_monitors_own_token_never_goes_to_a_rank_of_a_group_with_a_token(
    groups: Api, fleet: FakeFleet
) -> None:
    ranks = [fleet.add("rg_0", guarded=True), fleet.add("rg_5", guarded=True)]
    for rank, headers in zip(ranks, (ZERO, TOKEN), strict=True):
        body = to_json(rank.registration())
        assert groups.call("POST", "/v1/register", json=body, headers=headers).status_code == 200
    groups.tick()
    name = ranks[0].identity.rank
    asked = "/state", "/stacks", "/flight_recorder", "/last_words"
    for path in asked:
        groups.call("GET", f"/v1/ranks/{name}{path}", headers=TOKEN)
    answer = groups.call("POST", "/v1/groups/rg_0/evict", json={"reason": "x"}, headers=TOKEN)
    assert answer.status_code in (200, 409)
    assert len(ranks[0].asked) > len(asked)
    assert {header for _, header in ranks[0].asked} == {"Bearer zero"}
    assert {header for _, header in ranks[1].asked} == {"Bearer secret"}


def test_nobody_speaks_for_ranks_of_another_groups_token(fleet: FakeFleet) -> None:
    liar, other = fleet.add("rg_0", 0), fleet.add("rg_1", 0)
    both = [fleet.add("rg_0", 1), liar, other]

    def lies(asked: Any) -> Any:
        entries = [HostEntry(rank.identity.rank, rank.url, rank.report()) for rank in both]
        return page(to_json(HostReport(asked.identity.host, tuple(entries))))

    fleet.host_page = lies
    targets = [rank.target() for rank in both]
    fetcher = Fetcher(tokens=Tokens("secret", GROUPS))
    try:
        for _ in range(2):  # in the second the liar is known to tell of the other
            sweep = Poller(fetcher).sweep(targets, deadline_s=5.0)
            assert not any(
                isinstance(observation.outcome, Unreachable) for observation in sweep.observations
            )
        assert {header for _, header in other.asked} == {"Bearer first"}
        assert len([path for path, _ in other.asked if path == "v1/state"]) == 2
    finally:
        fetcher.close()


@pytest.mark.parametrize(
    "text",
    [
        "rg_0",
        "rg_0 a b",
        "rg_0 a\nrg_0 b",
        "rg_0 t\u00f6ken",
        "rg_0 a\nrg_1",
        "rg_0 \x07",
        b"\xff a",
    ],
    ids=repr,
)
def test_a_file_of_group_tokens_that_is_open_or_unclear_is_refused(
    tmp_path: Path, text: Any
) -> None:
    path = tmp_path / "groups"
    path.touch(0o600)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CommandError):
        read_group_tokens(path)
    path.write_text("rg_0 zero\n\n0 zero\n  rg_1\tfirst\n")
    assert read_group_tokens(path) == GROUPS
    for mode in (0o604, 0o620, 0o644):
        path.chmod(mode)
        with pytest.raises(CommandError, match="chmod 600"):
            read_group_tokens(path)


@pytest.mark.parametrize("token", [None, "zero"])
def test_group_tokens_beside_no_token_or_the_same_are_a_mistake(
    tmp_path: Path, token: str | None
) -> None:
    with pytest.raises(StartError, match="group-tokens"):
        Service(options(tmp_path, token=token, group_tokens=GROUPS))
