"""How a rank's process ends, and what it leaves for torchrun."""

import json
import signal

import pytest

from lightkeeper.trainer import train

pytestmark = pytest.mark.integration  # torch


@pytest.fixture
def rank(monkeypatch, tmp_path):
    """`main` with another training, and torchrun's error file."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    monkeypatch.setenv("LIGHTKEEPER", "0")
    monkeypatch.setattr("sys.argv", ["lightkeeper.trainer.train"])

    def run(training):
        monkeypatch.setattr(train, "train", training)
        train.main()

    yield run
    signal.signal(signal.SIGTERM, before)


def raising(error):
    def training(opt, reporter):
        raise error

    return training


def test_what_ended_a_rank_is_in_torchruns_error_file(rank, tmp_path):
    with pytest.raises(RuntimeError, match="gloo gave up"):
        rank(raising(RuntimeError("gloo gave up")))

    error = json.loads((tmp_path / "error.json").read_text())["message"]
    assert "gloo gave up" in error["message"]
    assert "in training" in error["extraInfo"]["py_callstack"]


def test_a_rank_that_is_told_to_end_ends_at_once_even_inside_a_c_call(rank):
    rank(lambda opt, reporter: None)

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
