"""Policy: what to do about a firing incident. Pure; every "no" says which guard, why, until when.

Belongs here: what is asked of policy and what it answers (`decisions`, `facts`), the guards
(`fault_guards`, `fleet_guards`) and their order (`deciding`), the operator's rules as data
(`rules`, `windows`) and how they are read from a parsed file (`reading`, `calendar`, `options`),
and what earlier evictions taught (`lessons`). Not here: files, clocks, who carries a decision out.
Whoever only needs a decision imports this package alone.
"""

from monitor.policy.deciding import decide
from monitor.policy.decisions import Decision, Evict, Guard, Hold
from monitor.policy.facts import Fleet, GroupView, PastEviction, PastFault
from monitor.policy.lessons import Lesson
from monitor.policy.rules import DEFAULT, Action, Policy

__all__ = [
    "DEFAULT",
    "Action",
    "Decision",
    "Evict",
    "Fleet",
    "GroupView",
    "Guard",
    "Hold",
    "Lesson",
    "PastEviction",
    "PastFault",
    "Policy",
    "decide",
]
