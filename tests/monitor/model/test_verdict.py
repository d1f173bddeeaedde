"""What the monitor knows of each kind of fault, before any is found."""

from monitor.model.verdict import MEANINGS, Kind


def test_every_kind_says_what_it_is_and_whether_it_stops_anybody() -> None:
    missing = set(Kind) - set(MEANINGS)
    assert not missing, f"say in MEANINGS (monitor/model/verdict.py) what {missing} means"
