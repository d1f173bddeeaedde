"""Carries out an `Evict`: asks, then confirms by looking. Believes no answer.

Belongs here: the ladder, its looks, its worker thread (`worker`), how far each eviction came
(`cases`). Does not belong here: whether to evict (policy). Theory of operation: one worker thread
takes one eviction at a time and climbs a ladder:

1. evidence: flight records, stacks and states of the group are saved, see `monitor.evidence`;
   it waits for that a few seconds at most. Culprits of a standstill that move by then are let go.
2. quarantine: the culprit's hosts go on the deny list before the group is gone, so that the
   launcher that restarts it is refused.
3. gate, where there is one: the replica id goes on its list (`denials`, `gatekeeper`). It needs
   nobody's cooperation: the others' next quorum comes when its heartbeats have aged out.
4. lighthouse_kill, together with the gate: the Lighthouse's kill button. A kill that works answers
   500, one on a stopped group takes 30 s to fail, so the request runs in the background and only
   looking counts. It reaches the manager in group rank 0 alone, and cannot work when that process
   is stopped or its interpreter is stuck: then it is skipped.
5. worker_evict: `POST /v1/evict` to the WorkerServer of every rank still alive, in parallel:
   at once where the kill cannot work or has ended a part of the group, else after `kill_s`.
6. scheduler, where there is one: it removes the pod or the job step, when the WorkerServers had
   their time (`worker_s`) and somebody is not gone.
7. page: nothing helped; `monitor.notify` tells a person.

Looking means a fresh state of every accused rank and a fresh page of the Lighthouse. The worker's
part is over when every accused *incarnation* is gone (a defunct process is: it runs no more), or
those left are out of sight and the group's heartbeat is dead; it has failed when neither is so
after `confirm_s`. The group is *evicted* when besides its replica id has left the quorum, which
later ticks note (`EvictionProgress.out`); a replica id that beats on though its processes are gone
is a failure. Right before each rung the incarnation is looked at again, and the evict request names
it: a group that has restarted meanwhile is never hit. Rungs are alike (`rungs`): none waits, each
has its deadline and its recorded result, and one that crashes has failed, no more.
"""

from monitor.evictors.gate_metrics import gate_families
from monitor.evictors.gatekeeper import Gatekeeper
from monitor.evictors.order import Accused, Order, Patience
from monitor.evictors.worker import Evictors

__all__ = ["Accused", "Evictors", "Gatekeeper", "Order", "Patience", "gate_families"]
