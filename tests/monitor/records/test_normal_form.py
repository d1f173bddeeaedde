"""The collectives of a ring; what cannot be read raises one error."""

import pytest

from lightkeeper.monitor.model.names import GroupName, Host
from lightkeeper.monitor.records.ring import newest_collectives
from lightkeeper.monitor.records.safe_pickle import FlightRecordError
from lightkeeper.worker_server.wire import FlightRecord, Identity, RingEntry

IDENTITY = Identity("job", GroupName("rg_0"), 1, 2, Host("h"), 7, "one")


def ring(*entries: RingEntry) -> FlightRecord:
    return FlightRecord(IDENTITY, True, {"intra": (0, 1)}, entries, 3, None)


def test_point_to_point_operations_are_left_out() -> None:
    assert not newest_collectives(ring(RingEntry("intra", 1, "send", root=1, enter_age_s=0.0)))


def test_sequence_ids_that_start_again_drop_the_process_group_of_before() -> None:
    calls = newest_collectives(
        ring(*(RingEntry("intra", seq, "barrier", enter_age_s=0.0) for seq in (7, 1)))
    )
    assert [entry.seq for entry in calls] == [1]


def test_a_sequence_id_below_one_is_an_error() -> None:
    with pytest.raises(FlightRecordError, match=r"rg_0\.1: sequence 0 of 'intra'"):
        newest_collectives(ring(RingEntry("intra", 0, "barrier", enter_age_s=0.0)))
