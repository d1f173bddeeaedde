import pytest
import torch

from lightkeeper.trainer import status

pytestmark = pytest.mark.integration  # torch


def test_events_of_many_writers_are_whole_lines_of_one_file(tmp_path):
    path = tmp_path / "folder" / "status.jsonl"
    first = status.StatusFile(path, clock=lambda: 1.5, rank="rg_0.0")
    second = status.StatusFile(path, clock=lambda: 2.5, rank="rg_1.0")

    first.write("step", step=1)
    second.write("step", step=2)
    first.close()
    second.close()

    assert status.read_events(path) == [
        {"time": 1.5, "event": "step", "rank": "rg_0.0", "step": 1},
        {"time": 2.5, "event": "step", "rank": "rg_1.0", "step": 2},
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


def test_a_file_of_each_rank_is_named_by_a_placeholder(tmp_path):
    status.StatusFile(tmp_path / "{rank}.jsonl", rank="rg_1.0").write("started")

    assert [event["rank"] for event in status.read_events(tmp_path / "rg_1.0.jsonl")] == ["rg_1.0"]
