"""Both records of real ranks on gloo, merged: what was seen twice is known to be one."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.integration

UNRECORDED = {"send"}
"""Torch's record on gloo has no point-to-point operations."""


@pytest.fixture(scope="module")
def made(torch_python, tmp_path_factory):
    """Of each call: torch's entries, ring ops they were matched with, matched, torch's alone."""
    done = torch_python("records_parent", tmp_path_factory.mktemp("job"))
    assert done.code == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_every_entry_of_torchs_that_python_caused_is_found_in_its_call(made):
    for name, (count, _, matched, alone) in made.items():
        if name != "ddp":
            assert (matched, alone) == (count, 0), name
            assert (count > 0) == (name not in UNRECORDED), name


def test_each_is_matched_with_the_call_of_its_name(made):
    for name in ("all_reduce", "broadcast", "reduce_scatter", "all_to_all", "gather", "barrier"):
        assert made[name][1] == [name]


def test_fsdp2_is_seen(made):
    assert made["fsdp"][1] == ["all_gather_single", "reduce_scatter_single"]


def test_what_ddps_reducer_does_in_cpp_is_torchs_alone(made):
    count, ops, matched, alone = made["ddp"]
    assert count > 0
    assert (ops, matched, alone) == ([], 0, count)
