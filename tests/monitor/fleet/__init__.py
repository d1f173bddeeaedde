"""An in-memory fleet on a fake timeline: ranks that step, wait, sicken, die and come back.

`SimFleet` runs G groups of W ranks in slices of 0.05 s and makes one `Snapshot` a tick. Its
program, each attempt of a step: data, forward (an all_gather inside the group at its end),
backward (an all_reduce inside the group at its end), communication (a barrier of all ranks of
all groups in the quorum, then the commit), optimizer. A fault script is a list of
`at(seconds, fault)`; `Drive` runs fleet and pipeline against each other and carries
evictions out. Reusable by any test that needs snapshots or decisions.

One class in layers, each knowing those below: `state`, `program` (of the ranks), `quorum`, `seen`
(by the monitor), `fleet` (time, launcher, evictor). Faults: `faults` of a rank, `troubles` of more.
"""

# ruff: noqa: F401
from tests.monitor.fleet.drive import Drive
from tests.monitor.fleet.faults import (
    cpu_stall,
    crash,
    ended_by,
    gil,
    gives_across,
    habit,
    hang,
    leaves,
    leaves_out,
    leaves_vote,
    let_go,
    mismatch,
    pause,
    raises,
    recover,
    runs,
    sets,
    slow,
    slow_in,
    stands,
    stop,
    tokens,
    traced,
    trains_alone,
)
from tests.monitor.fleet.fleet import SimFleet
from tests.monitor.fleet.rank import (
    ACROSS,
    HEARTBEAT_TIMEOUT_S,
    INTRA,
    SLICE_S,
    START_S,
    WORK,
    SimRank,
)
from tests.monitor.fleet.script import At, Fault, at
from tests.monitor.fleet.troubles import (
    fail_commits,
    flip,
    ghosts_hang,
    heal,
    jam,
    jam_across,
    late,
    lighthouse_away,
    lighthouse_down,
    lighthouse_restart,
    loss,
    nan,
    restart,
    second_life,
    shut_out,
    silent,
    slow_link,
    slow_network,
    unregister,
)
