"""Notify: people and pagers are told what fires, what was resolved, and what needs a person.

Belongs here: what is worth a message, the sinks' formats, delivery. Does not belong here: whether
something fires (incident) or is evicted (policy). Theory of operation: a tick hands over all that
should be known *now*, as notices by key. Each sink has a courier, a thread of its own, that
compares them with what its sink was told and sends the difference: a new key fires, a key that is
gone is resolved. What was told is stored, so a restart sends nothing twice and a resolve that
happened meanwhile is sent. Nothing here waits for a sink but its own courier.
"""

from monitor.notify.courier import Courier
from monitor.notify.notices import Known, Notice, Status
from monitor.notify.office import Office
from monitor.notify.sinks import Sink

__all__ = ["Courier", "Known", "Notice", "Office", "Sink", "Status"]
