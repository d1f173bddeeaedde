"""Batches of sends and receives, as NCCL records them: parts without a state, then the whole."""

from lightkeeper.monitor.records.analyse import analyse
from lightkeeper.monitor.records.dump import Record, assemble, read_dump
from lightkeeper.monitor.records.findings import Fault
from tests.monitor.records.dumps import nccl, send, status


def batch(*parts):
    return [send(5 + at, 9, f"nccl:{part}") for at, part in enumerate((*parts, "coalesced"))]


def said(entries):
    dumps = {r: nccl(*rows, pg_status=status(p0=(9, -1, 8))) for r, rows in entries.items()}
    findings = analyse(assemble(Record(r, read_dump(d)) for r, d in dumps.items())).findings
    return [(finding.kind, finding.culprits) for finding in findings]


def test_a_ring_waits_for_the_rank_that_is_gone_and_not_between_two_that_are_there() -> None:
    ring = {r: batch(f"send {r}->{r + 1}", f"recv {r}<-{(r - 1) % 4}") for r in range(3)}
    assert said(ring) == [(Fault.SILENT, (3,))]


def test_a_rank_in_a_batch_whose_parts_are_overwritten_is_somewhere() -> None:
    assert said({0: batch(), 1: batch("send 1->0"), **{r: [] for r in (2, 3)}}) == [
        (Fault.STUCK_INSIDE, ())
    ]
