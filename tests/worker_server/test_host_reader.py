"""The fast way to read a host's answer says what the slow one says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from experiments.scale.fleet import Fleet
from lightkeeper.worker_server import wire


def odd_answers() -> dict[str, Any]:
    """Answers of a host, each with something that is not as usual."""
    fleet = Fleet(16, clock=lambda: 5000.0)
    plain = json.loads(fleet.answer(fleet.hosts[0], "/rg_0.0/v1/host"))

    def changed(**words: Any) -> dict[str, Any]:
        entries = [dict(entry) for entry in plain["entries"]]
        report = entries[3]["report"]
        entries[3]["report"] = {**report, **{k: {**report[k], **v} if isinstance(v, dict) else v
                                             for k, v in words.items()}}  # fmt: skip
        return {**plain, "entries": entries}

    return {
        "plain": plain,
        "no commits yet": changed(step={"commits": 0, "attempt": 1}),
        "between two attempts": changed(step={"attempt": 1, "commits": 1}),
        "another committed step": changed(step={"committed_step": 3}),
        "no committed step, though one is expected": changed(step={"committed_step": None}),
        "a key that is not known": changed(step={"new": 1}, later=[1]),
        "a longer row": changed(heads=[["default", 8, 10, 0, "all_reduce", 0.1, 0, 9, 0.5, "new"]]),
        "no report": {**plain, "entries": [{"rank": "rg_0.0", "error": "gone"}]},
        "nulls": changed(process={"cores": None}, witness=None),
    }


@pytest.mark.parametrize("what", odd_answers())
def test_what_is_read_fast_is_what_is_read_slowly(what: str) -> None:
    reader, answer = wire.HostReader(), odd_answers()[what]
    for _ in range(2):  # the second time it knows them
        assert reader.read(json.dumps(answer).encode()) == wire.parse_host(answer)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"schema": 2, "host": "h", "entries": []}', b'{"schema": 1}', b"\xff",
     b'{"schema": 1, "host": "h", "entries": [{"rank": "rg_0.0", "report": {"identity": 7}}]}',
     b'{"schema": 1, "host": "h", "entries": [{"rank": "no rank"}]}',
     b'{"schema": 1, "host": "\\ud800x", "entries": []}'],
)  # fmt: skip
def test_what_is_no_answer_of_a_host_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        wire.HostReader().read(body)


def test_a_reader_remembers_no_more_than_it_may() -> None:
    reader, fleet = wire.HostReader(), Fleet(64, clock=lambda: 5000.0)
    reader.most = 10
    for host in fleet.hosts:
        reader.read(fleet.answer(host, "/rg_0.0/v1/host"))
        assert len(reader._by_bytes) <= 10
