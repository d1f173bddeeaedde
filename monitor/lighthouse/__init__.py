"""TorchFT's Lighthouse: what it shows, read; its kill button; both as JSON, which it lacks.

Belongs here: the page (`page`: pure), the driver (`driver`), the JSON of `GET /v1/lighthouse`
(`export`: pure). Does not belong here: what a view means (history, tracker), its past
(`monitor.lighthouse_log`). TorchFT's own gRPC client is not used: it needs torchft, hence torch, in
the monitor; it knows two calls, Quorum and Heartbeat, of which the one would make the monitor a
member of the job and the other a heartbeating replica for which every quorum waits; and neither
tells what the page does not.
"""

from monitor.lighthouse.driver import ANSWER_MAX_BYTES, PAGE_MAX_BYTES, Lighthouse
from monitor.lighthouse.export import lighthouse_json
from monitor.lighthouse.page import PageError, parse_status

__all__ = [
    "ANSWER_MAX_BYTES",
    "PAGE_MAX_BYTES",
    "Lighthouse",
    "PageError",
    "lighthouse_json",
    "parse_status",
]
