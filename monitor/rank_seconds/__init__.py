"""Goodput as it happens: every rank-second that is watched is effective, or not for a cause. Pure.

Theory of operation. Each rank has an account of open seconds: those since its last commit. A tick
adds the seconds since the tick before. When the rank's own counter shows n commits, the seconds up
to the last of them are closed, and of these n times the job's *usual pace* are effective; the rest
is not. Seconds by which an attempt exceeds the usual pace are booked as ineffective while they
pass, not when it ends. So both counters together grow by the rank-seconds watched, and a step that
took ten times as long as usual is one tenth effective, however often anybody looked.

*Usual pace* (`usual`): seconds a commit, one number for the job, since its groups commit together:
the median of an hour in which nothing stood. Without a cause a commit may take a quarter longer and
is effective all the same: that is noise, and nobody should be asked to explain it. With a cause it
may not. Before the pace is known, seconds wait. What is slow for longer than half an hour and no
incident says so becomes usual.

*Cause* (`causes`), the first that holds: the kind of an open incident that names the rank's group;
what the rank itself does (`recovering` once its group was evicted or died of an incident, until it
commits again; `starting`; a declared `checkpoint`, `evaluation`, `compile`); the kind of any open
incident, the worst first, since groups wait for each other; what any other rank does, in the same
order; `failed_commit`, when the attempt before was not committed; `unexplained`. An attempt that
became late for a cause keeps it. What has no cause waits for a minute: an incident that opens
meanwhile and began before takes it.

What nobody watched is counted for nobody. A monitor that starts begins from what it then sees, and
so it does after a gap of more than a minute (and five ticks). In a shorter one, and while a rank
does not answer, seconds wait for the rank's commit counter, which tells what they were worth.
A rank that leaves while an incident or an eviction of its group is at most an hour old, and the
group has not trained since, goes on costing `recovering` until as many ranks are there as before,
for an hour at most; any other that leaves has finished, and takes its open seconds along. Ranks
that report no steps are left out.

Belongs here: this rule. Not here: what one incident cost (`audit`), forecasts (`monitor.goodput`).
"""

from monitor.rank_seconds.book import RankSeconds, Spent

__all__ = ["RankSeconds", "Spent"]
