"""`lightkeeper run` has TorchFT ask again for a quorum whose answer was lost."""

import os

import pytest

from lightkeeper.worker_server import __main__ as run
from lightkeeper.worker_server.rank.admission import options
from lightkeeper.worker_server.rank.settings import quorum_retries


@pytest.mark.parametrize(
    ("environ", "retries"),
    [
        ({}, "59"),
        ({"TORCHFT_QUORUM_TIMEOUT_SEC": "300"}, "299"),
        ({"TORCHFT_QUORUM_TIMEOUT_SEC": "0.5"}, "1"),
        ({"TORCHFT_QUORUM_TIMEOUT_SEC": "soon"}, "59"),
        ({"TORCHFT_QUORUM_TIMEOUT_SEC": "inf"}, "59"),
        ({"TORCHFT_QUORUM_RETRIES": "0"}, "0"),
    ],
    ids=["defaults", "long", "short", "no-number", "endless", "chosen"],
)
def test_it_asks_about_every_second_unless_the_user_chose(environ, retries):
    assert quorum_retries(environ) == retries
    assert options(["--", "true"], environ).changes["TORCHFT_QUORUM_RETRIES"] == retries


@pytest.mark.parametrize("words", [["train.py"], ["-m", "torch.distributed.run", "train.py"]])
def test_what_is_started_has_it(words, monkeypatch):
    started = []
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(os, "execv", lambda *_: started.append(dict(os.environ)))
    run._become(words, [])
    assert [environ["TORCHFT_QUORUM_RETRIES"] for environ in started] == ["59"]
