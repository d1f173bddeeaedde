"""Of several monitors on one store exactly one acts: the one that holds the lease.

Belongs here: when a lease is held and when it may be taken (`grip`: pure), who this process is
(`holder`), the row (`table`), the thread that renews it (`lease`), what it says (`standing`). Not
here: what a monitor does when it takes over or stands by (`keeper`), and the fence in the
transaction that writes (`store`).

Theory of operation. The store has one row: holder, epoch, and a beat that every renewal raises by
one. The holder renews every second; another monitor reads the row every second and takes it when
it has stood still for `ttl_s` (5 s). Taking and renewing are each one conditional UPDATE, so the
database's own atomicity lets one of two win. Taking raises the epoch: the fencing token.

Why there are never two that act, whatever any wall clock does: no wall clock is read. The holder
counts from the moment *before* it sent the last renewal that went through, on its own clock, and
acts for `ttl_s - margin_s` (4 s) after it. Another one counts from the moment *after* it first
read this beat, on its own clock, and takes the row `ttl_s` later at the earliest. The renewal was
committed after the first moment and before the second; so the holder has stopped acting at least
`margin_s` before another begins, as long as the two clocks do not run apart by a fifth
(`margin_s / ttl_s`). Both are CLOCK_BOOTTIME, which goes on while a process is stopped and while
its host sleeps: who wakes knows at its next look that its time is over. "Unchanged" is meant by
the beat, which never goes back, so a watcher that was itself stopped between two looks draws no
wrong conclusion.

Two roads are shorter than 5 s. A holder that ends in order gives the row back. And where the holder
was a process of this very host (same boot, same PID namespace) that is not there any more, nobody
is left who could act.

What a clock cannot prevent: a process stopped between its last look at the clock and the system
call that sends a request, or a virtual machine whose clocks stood still with it. Against that there
is the fence: every write carries holder and epoch and is refused, in the same transaction, when the
row shows others; an eviction begins with such a write, flushed. What is left is the one request
that was on its way, and it names the incarnation that it means: at worst it ends a process that the
other monitor was about to end too.

The database away: nobody can renew, so nobody acts 4 s later; nobody can take either, so when it
is back and the row is as it was, the holder goes on under its old epoch.
"""

from monitor.lease.grip import Times
from monitor.lease.holder import me
from monitor.lease.lease import Lease
from monitor.lease.standing import Standing
from monitor.lease.table import LeaseTable

__all__ = ["Lease", "LeaseTable", "Standing", "Times", "me"]
