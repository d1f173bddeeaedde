"""Carries out an `Evict`: asks, then confirms by looking. Believes no answer.

Belongs here: the ladder, its looks, its worker thread. Does not belong here: whether to evict
(policy). Theory of operation: one worker thread takes one eviction at a time and climbs a ladder:

1. evidence: flight records, stacks and states of the group are saved, see `monitor.evidence`;
   it waits for that a few seconds at most. Culprits of a standstill that move by then are let go.
2. quarantine: the culprit's hosts go on the deny list before the group is gone, so that the
   launcher that restarts it is refused.
3. lighthouse_kill: the Lighthouse's kill button. A kill that works answers 500, one on a
   stopped group takes 30 s to fail, so the request runs in the background and only looking
   counts. It reaches the manager in group rank 0 alone, and cannot work when that process is
   stopped or its interpreter is stuck: then it is skipped.
4. worker_evict: `POST /v1/evict` to the WorkerServer of every rank still alive, in parallel:
   at once where the kill cannot work or has ended a part of the group, else after `kill_s`.

Looking means a fresh state of every accused rank and a fresh page of the Lighthouse. The
eviction has worked when every accused *incarnation* is gone; it has failed when it is not
after `confirm_s`. Right before each rung the incarnation is looked at again, and the evict
request names it: a group that has restarted meanwhile is never hit.
"""

from monitor.evictors.order import Accused, Order, Patience
from monitor.evictors.worker import Evictors

__all__ = ["Accused", "Evictors", "Order", "Patience"]
