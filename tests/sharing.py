"""How processes share the integration tests: what goes together, and what goes first.

Not by the marks of pytest-xdist (`--dist loadgroup`): version 3.8 writes them into an attribute
that pytest 9.2 no longer reads, and then deals the tests out one by one without a word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pytest
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

TOGETHER: Final = {
    # they train for real, each of these two half a core: three at once would ask for too much
    "fleets": (
        "tests/integration/observed/",
        "tests/integration/test_demo.py",
        "tests/prometheus/test_panels.py",
        "tests/integration/test_quorum_faults.py",
        "tests/integration/test_network.py",
        "tests/experiments/test_campaign_fleet.py",
    ),
    "trainers": (
        "tests/experiments/test_killing.py",
        "tests/trainer/test_fleet.py",
        "tests/examples/test_torchft_ddp.py",
        "tests/examples/test_accelerate.py",
        "tests/examples/test_frameworks.py",
        "tests/examples/test_lightning.py",
        "tests/examples/test_torchtitan.py",
    ),
    "attached": (
        "tests/integration/test_attached_only.py",
        "tests/integration/test_doctor.py",
        "tests/integration/test_preflight.py",
        "tests/integration/test_runs.py",
    ),  # long, and its ranks sleep
    "postgresql": (
        "tests/monitor/test_crash.py",
        "tests/monitor/store/test_databases.py",
        "tests/monitor/test_two_monitors.py",
    ),
    "pages": ("tests/page/",),  # a browser
    # a small job, beside which its lines are typed; help of all programs, asked for once
    "docs": ("tests/docs/test_sessions.py", "tests/docs/test_commands.py"),
    "installed": ("tests/lightkeeper/test_installed.py",),  # environments with the wheel
    # each of these files has processes, or what one has made, that its tests share
    "gate": (
        "tests/gate/test_gate_process.py",
        "tests/gate/test_fire_process.py",
        "tests/gate/test_overlap_process.py",
    ),
    "bounds": ("tests/monitor/show/test_bounds.py",),
    "scenes": ("tests/dashboards/test_scenes.py",),
    # they look for processes by a name that all of them use
    "launches": ("tests/trainer/test_launch.py",),
    "slurm": ("tests/monitor/act/schedulers/test_real_slurm.py", "tests/examples/test_slurm.py"),
    # what starts one interpreter with torch after another comes last, when the fleets are over
    "endings": ("tests/worker_server/test_with_torch.py", "tests/worker_server/test_last_words.py"),
    "ddp": (
        "tests/examples/test_ddp.py",
        "tests/examples/test_recipes.py",
        "tests/prometheus/test_healthy.py",
    ),
    "fates": ("tests/worker_server/test_matrix.py",),
    # forked from one process with torch
    "torch": (
        "tests/worker_server/test_torchft.py",
        "tests/worker_server/test_exchange.py",
        "tests/worker_server/test_records.py",
        "tests/worker_server/test_transfers.py",
    ),
    "recipes": ("tests/examples/test_kubernetes.py", "tests/charts/"),
    "imports": ("tests/worker_server/test_import_torch.py",),
    "attaches": ("tests/worker_server/test_attach.py", "tests/worker_server/test_joining.py"),
    "no code": ("tests/worker_server/test_zero_code.py",),
}
"""Group -> its files and folders, longest first: one process has them all, one after the other."""

_ORDER: Final = tuple(TOGETHER)
_LAST: Final = _ORDER.index("endings")
_BUSY: Final = (
    "tests/worker_server/test_attach_surroundings.py",
    "tests/dashboards/",
    "tests/monitor/decide/",
    "tests/monitor/detect/",
    "tests/monitor/model/",
    "tests/monitor/offline/",
    "tests/monitor/records/",
    "tests/experiments/test_weeks.py",
)
"""No groups, and after them: they import torch, or wait for nothing."""


def unit_of(nodeid: str) -> str:
    """What is given to a process as a whole: a group, or the one test."""
    for group, places in TOGETHER.items():
        if nodeid.startswith(places):
            return group
    return nodeid


def turn_of(nodeid: str) -> int:
    """For sorting: the fleets, what mostly waits, what works; of each the long ones first, which
    would keep one process busy and the others idle in the end."""
    unit = unit_of(nodeid)
    if unit in TOGETHER:
        turn = _ORDER.index(unit)
        return turn if turn < _LAST else turn + 1
    return len(_ORDER) + 1 if nodeid.startswith(_BUSY) else _LAST


def scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """xdist's own by scope, with our units and in our order."""
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    config.option.loadscopereorder = False  # it would begin last what has few and long tests
    return Units(config, log)
