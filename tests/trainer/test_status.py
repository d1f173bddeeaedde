import time

import pytest
import torch

from lightkeeper.trainer import status

pytestmark = pytest.mark.integration  # torch


def test_events_of_many_writers_are_whole_lines_of_one_file(tmp_path):
    path = tmp_path / "folder" / "status.jsonl"
    first = status.StatusFile(path, rank="rg_0.0")
    second = status.StatusFile(path, rank="rg_1.0")
    began_s = time.time()

    first.write("step", step=1)
    second.write("step", step=2)

    events = status.read_events(path)
    assert [began_s - 0.1 <= event.pop("time") <= time.time() + 0.1 for event in events] == [
        True
    ] * 2
    assert events == [
        {"event": "step", "rank": "rg_0.0", "step": 1},
        {"event": "step", "rank": "rg_1.0", "step": 2},
    ]


def test_a_line_that_is_being_written_is_not_read(tmp_path):
    path = tmp_path / "status.jsonl"
    path.write_text('{"event": "step"}\n{"eve')

    assert status.read_events(path) == [{"event": "step"}]


def test_without_a_path_nothing_is_written(tmp_path):
    status.StatusFile(None).write("step")

    assert status.read_events(tmp_path / "absent") == []


def test_the_fingerprint_sees_one_bit_and_not_the_order():
    state = {"a": torch.zeros(3), "b": torch.ones(2)}
    turned = dict(reversed(state.items()))
    bit = {**state, "a": torch.tensor([0.0, -0.0, 0.0])}

    assert status.fingerprint(state) == status.fingerprint(turned)
    assert status.fingerprint(state) != status.fingerprint(bit)
