"""Flight records in one normal form. The only code that knows PyTorch's own keys.

Belongs here: torch's formats, the WorkerServer's collective ring, the frozen types that
detectors and the analysis read. No `eval`; a pickle is opened by `safe_pickle` and nothing else.
"""

from monitor.flight_recorder.record import Entry, FlightRecordError, RankRecord
from monitor.flight_recorder.ring import from_ring
from monitor.flight_recorder.signature import Signature

__all__ = [
    "Entry",
    "FlightRecordError",
    "RankRecord",
    "Signature",
    "from_ring",
]
