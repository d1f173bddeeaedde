"""What the monitor knows of each kind of fault, before any is found; whom a verdict may blame."""

import pytest

from lightkeeper.monitor.model.incident import incident_from_json, incident_to_json
from lightkeeper.monitor.model.names import GroupName, RankName
from lightkeeper.monitor.model.verdict import MEANINGS, Confidence, Kind, Verdict
from lightkeeper.monitor.model.wording import who
from tests.changed import replace
from tests.monitor.samples import incident

A, B = RankName("job.0"), RankName("job.1")


def verdict(confidence: Confidence, *ranks: RankName) -> Verdict:
    return Verdict(
        kind=Kind.MISMATCH, culprits=ranks, groups=(GroupName("job"),), reason="they differ",
        confidence=confidence, since_s=100.0,
    )  # fmt: skip


def test_every_kind_says_what_it_is_and_whether_it_stops_anybody() -> None:
    missing = set(Kind) - set(MEANINGS)
    assert not missing, f"say in MEANINGS (monitor/model/verdict.py) what {missing} means"


def test_an_unsure_verdict_blames_nobody_and_keeps_its_candidates() -> None:
    unsure = verdict(Confidence.UNSURE, A, B)
    assert (unsure.culprits, unsure.candidates, unsure.suspects) == ((), (A, B), (A, B))


@pytest.mark.parametrize("confidence", [Confidence.LIKELY, Confidence.CERTAIN])
def test_a_sure_verdict_has_culprits_and_no_candidates(confidence) -> None:
    sure = verdict(confidence, A)
    assert (sure.culprits, sure.candidates, sure.suspects) == ((A,), (), (A,))


def test_evidence_that_decides_makes_culprits_of_candidates_and_doubt_the_reverse() -> None:
    unsure = verdict(Confidence.UNSURE, A, B)
    sure = replace(unsure, culprits=(B,), confidence=Confidence.LIKELY)
    assert (sure.culprits, sure.candidates) == ((B,), ())
    again = replace(sure, confidence=Confidence.UNSURE)
    assert (again.culprits, again.candidates) == ((), (B,))
    assert replace(again, confidence=Confidence.CERTAIN).culprits == (B,)


@pytest.mark.parametrize(
    ("confidence", "ranks", "says"),
    [
        (Confidence.CERTAIN, (A, B), "job.0 and job.1"),
        (Confidence.UNSURE, (A, B), "cannot tell: job.0 or job.1"),
        (Confidence.UNSURE, (A,), "perhaps job.0"),
        (Confidence.UNSURE, (), ""),
        (
            Confidence.UNSURE,
            tuple(RankName(f"job.{n}") for n in range(6)),
            "cannot tell: job.0, job.1, job.2, job.3 or 2 more",
        ),
    ],
)
def test_candidates_are_named_as_candidates(confidence, ranks, says) -> None:
    assert who(verdict(confidence, *ranks)) == says


def test_candidates_come_back_from_the_store() -> None:
    unsure = verdict(Confidence.UNSURE, A, B)
    stored = replace(incident(), verdict=unsure, culprits=(), candidates=unsure.candidates)
    read = incident_from_json(incident_to_json(stored))
    assert (read.suspects, read.verdict.candidates) == ((A, B), (A, B))
