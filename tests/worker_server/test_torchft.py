"""TorchFT without a line of code: real Managers under a real Lighthouse, and groups of one."""

from __future__ import annotations

import gc
import inspect
import json
import sys
import time
import types
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration  # torch

torch = pytest.importorskip("torch")
pytest.importorskip("torchft")
import torch.distributed as dist  # noqa: E402
from torch.distributed.distributed_c10d import (  # noqa: E402
    AllgatherOptions,
    AllreduceOptions,
    BroadcastOptions,
)
from torchft import manager as torchft_manager  # noqa: E402
from torchft import process_group as torchft_groups_module  # noqa: E402
from torchft.process_group import (  # noqa: E402
    ErrorSwallowingProcessGroupWrapper,
    ProcessGroup,
    ProcessGroupDummy,
    ProcessGroupGloo,
)

from lightkeeper.worker_server import wire  # noqa: E402
from lightkeeper.worker_server.rank import collectives, torchft, torchft_groups  # noqa: E402
from lightkeeper.worker_server.rank.page import layout  # noqa: E402
from lightkeeper.worker_server.rank.page.reader import PageReader  # noqa: E402
from lightkeeper.worker_server.sidecar.metrics import RankCollector  # noqa: E402
from tests.worker_server import local_sgd_parent, torchft_parent  # noqa: E402
from tests.worker_server.pages import NOW, identity  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
FORMS = "configure" if hasattr(ProcessGroup, "configure") else "reconfigure"
"""What makes a group anew, up to torchft 0.2.0 and since."""


# -- two replica groups, a heal and a death -------------------------------------------------------


@pytest.fixture(scope="module", params=["wrapped", "native"])
def job(request, torch_python, tmp_path_factory):
    """What both ranks left in their pages, and what `a` saw of its steps."""
    if request.param == "native" and (
        FORMS == "configure" or not hasattr(ProcessGroup, "supports_reconfigure")
        or not hasattr(dist.ProcessGroup, "reconfigure")
    ):  # fmt: skip
        pytest.skip("groups of torch's own in a Manager: torch >= 2.14 and TorchFT after 0.2.0")
    folder = tmp_path_factory.mktemp("job")
    done = torch_python("torchft_parent", folder, request.param)
    steps, codes = (json.loads(line) for line in done.stdout.splitlines() if line[:1] in "{[")
    assert codes == [0, 9]
    pages = {name: PageReader(folder / f"{name}.page") for name in "ab"}
    for page in pages.values():
        assert page.lighthouse == steps["lighthouse"].removeprefix("http://")
    return pages, steps["a"]


def over_the_wire(step):
    process = wire.Process(alive=True, state="S")
    answer = wire.to_json(wire.StateReport(identity(world_size=1), process, step))
    return wire.parse_state(json.loads(json.dumps(answer))).step


def read(page):
    now_ns = time.monotonic_ns()
    return page.ring(now_ns)[0], page.step_state(now_ns), page.heads(now_ns)


@pytest.mark.integration
def test_every_step_of_a_manager_is_a_step_of_the_rank(job):
    pages, seen = job
    rows, _ = pages["a"].steps(0, time.monotonic_ns())
    committed = [row.committed for row in rows]
    assert committed == [committed for _, committed in seen]
    assert [row.step for row in rows] == [sum(committed[:n]) for n in range(len(committed))]
    _, state, _ = read(pages["a"])
    assert state.source == "torchft"
    assert state.replica_id.startswith("a:")
    assert (state.commits, state.committed_step) == (sum(committed), sum(committed) - 1)
    assert state.participants == 1
    assert state.quorum_id is not None


@pytest.mark.integration
def test_a_group_that_heals_goes_on_with_the_steps_of_the_others(job):
    pages, seen = job
    rows, _ = pages["b"].steps(0, time.monotonic_ns())
    both = [step for step, (participants, _) in enumerate(seen) if participants == 2]
    assert both[0] >= 2
    assert [row.step for row in rows if row.committed][-3:] == both[:3]


@pytest.mark.integration
def test_collectives_across_groups_are_one_by_quorum_and_sequence(job):
    a, b = (read(job[0][name])[0] for name in "ab")
    mine = {(e.quorum, e.seq): (e.op, e.sizes_in, e.dtype, e.reduce_op) for e in a}
    theirs = {(e.quorum, e.seq): (e.op, e.sizes_in, e.dtype, e.reduce_op) for e in b}
    assert theirs
    assert theirs.items() <= mine.items()
    assert {e.group for e in (*a, *b)} == {"torchft"}
    quorums = [e.quorum for e in a]
    assert quorums == sorted(quorums)
    assert next(e.seq for e in a if e.quorum == quorums[0]) == 1
    assert all(e.site.startswith("worker_server/torchft_parent.py:") for e in a)
    assert all(e.exit_age_s is not None for e in a)


@pytest.mark.integration
def test_an_error_that_torchft_swallows_is_on_record(job):
    pages, seen = job
    ring, _, _ = read(pages["a"])
    failed = [e for e in ring if e.error]
    assert [committed for _, committed in seen].count(False) == 1
    assert len(failed) == 1
    assert failed[0].error.startswith("RuntimeError: ")


@pytest.mark.integration
def test_the_head_counts_in_the_newest_quorum(job):
    ring, _, (head,) = read(job[0]["a"])
    newest = [e for e in ring if e.quorum == ring[-1].quorum]
    assert (head.name, head.size, head.enqueued, head.completed, head.inside) == (
        "torchft", 1, len(newest), len(newest), 0)  # fmt: skip


@pytest.mark.integration
def test_quorums_configurations_and_checkpoints_are_timed(job):
    pages, seen = job
    a = pages["a"].times()
    assert a["quorum"].done == len(seen)
    assert a["reconfigure"].done == len({e.quorum for e in read(pages["a"])[0]})


@pytest.mark.integration
def test_donor_and_healer_tell_what_the_heal_took(job):
    """By what a monitor reads of them: `/v1/state` has no more than this."""
    pages, _ = job
    a, b = (over_the_wire(read(pages[name])[1]).times for name in "ab")
    assert a.keys() == {"staging", "reconfigure"}
    assert b.keys() == {"load", "apply", "reconfigure"}
    nbytes = 4 * torchft_parent.WEIGHTS
    for took in (a["staging"], b["load"], b["apply"]):
        assert (took.done, took.sum_bytes, took.last_bytes) == (1, nbytes, nbytes)
    for took in (*a.values(), *b.values()):
        assert 0 < took.last_s <= took.sum_s < 30
    assert b["load"].last_s > nbytes / 100e9  # no wire is that fast
    assert b["apply"].last_s < b["load"].last_s + 5
    assert a["reconfigure"].done > b["reconfigure"].done == 1


@pytest.mark.integration
def test_the_managers_timeouts_are_told(job):
    timeout_s = torchft_parent.TIMEOUT_S
    for page in job[0].values():
        assert page.timeouts == {
            "collective": timeout_s,
            "quorum": torchft_parent.QUORUM_TIMEOUT_S,
            "commit": timeout_s,
        }


@pytest.fixture(scope="module")
def rounds(torch_python, tmp_path_factory):
    """The last states of ranks that train alone and meet every few steps."""
    folder = tmp_path_factory.mktemp("rounds")
    done = torch_python("local_sgd_parent", folder)
    assert json.loads(done.stdout) == [0] * len(local_sgd_parent.RUNS)
    return {name: PageReader(folder / f"{name}.page") for name in local_sgd_parent.RUNS}


@pytest.mark.integration
@pytest.mark.parametrize("name", local_sgd_parent.RUNS)
def test_steps_between_two_votes_are_local_and_votes_are_commits(rounds, name):
    state = over_the_wire(rounds[name].step_state(NOW))
    votes, alone = divmod(local_sgd_parent.STEPS, local_sgd_parent.EVERY)
    assert alone > 0
    assert (state.source, state.commits, state.attempt) == ("torchft", votes, votes)
    assert state.steps == local_sgd_parent.STEPS
    assert (state.committed_step, state.commit_failures) == (votes - 1, 0)


# -- groups of one, in this process ------------------------------------------------------------


@pytest.fixture
def ring(recording, reader):
    return lambda: reader.ring(NOW)[0]


@pytest.fixture
def store():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def configure(group, store, quorum, rank=0, size=1):
    if FORMS == "configure":
        address = f"127.0.0.1:{store.port}/{quorum}"
        group.configure(address, f"rg_{rank}", rank, size, quorum_id=quorum)
    elif size > 1:
        pytest.skip("one process has both sides here: up to TorchFT 0.2.0")
    else:
        opts = torchft_groups_module.ReconfigureOptions()
        opts.uuid, opts.handles = quorum, [group.get_reconfigure_handle()]
        group.reconfigure(opts).wait()
    return group


@pytest.fixture
def gloo(recording, store):
    made = configure(ProcessGroupGloo(timeout=timedelta(seconds=5)), store, 4)
    yield made
    made.shutdown()


def t(*shape):
    return torch.ones(*shape)


def test_a_call_is_open_until_its_work_was_waited_for(gloo, ring):
    work = gloo.allreduce([t(3)], AllreduceOptions())
    assert isinstance(work, dist.Work)
    (entry,) = ring()
    assert (entry.group, entry.quorum, entry.seq, entry.op) == ("torchft", 4, 1, "all_reduce")
    assert (entry.sizes_in, entry.dtype, entry.reduce_op) == (((3,),), "float32", "SUM")
    assert entry.is_async
    assert entry.exit_age_s is None
    assert entry.site.startswith("worker_server/test_torchft.py:")
    assert work.wait()
    assert work.get_future().wait() is not None
    assert ring()[0].exit_age_s is not None


def test_works_that_nobody_waits_for_are_not_kept_for_ever(gloo, recording):
    kept = []
    for _ in range(3):
        for _ in range(layout.RING_SLOTS):
            gloo.barrier()
        kept.append(sum(type(item) is torchft_groups.OpenGroupCall for item in gc.get_objects()))
    assert kept[2] <= kept[0] + 10


def test_lists_of_lists_and_roots_are_read(gloo, ring):
    gloo.allgather([[t(2)]], [t(2)], AllgatherOptions()).wait()
    gloo.broadcast([t(5)], BroadcastOptions()).wait()
    gloo.broadcast_one(t(6), 0).wait()
    gloo.barrier().wait()
    seen = [(e.op, e.sizes_in, e.sizes_out, e.root) for e in ring()]
    assert seen == [
        ("all_gather", ((2,),), ((2,),), None),
        ("broadcast", ((5,),), ((5,),), 0),
        ("broadcast", ((6,),), ((6,),), 0),
        ("barrier", (), (), None),
    ]


def test_of_groups_inside_groups_the_innermost_is_counted_once(gloo, ring):
    outer = ErrorSwallowingProcessGroupWrapper(gloo)
    work = outer.allreduce([t(3)], AllreduceOptions())
    assert type(work).__name__ == "_ErrorSwallowingWork"
    work.wait()
    gloo.allreduce([t(3)], AllreduceOptions()).wait()
    assert [(e.group, e.seq, e.exit_age_s is None) for e in ring()] == [
        ("torchft", 1, False), ("torchft", 2, False)]  # fmt: skip


def test_works_written_in_python_keep_their_type(gloo, recording, ring):
    swallowing = ErrorSwallowingProcessGroupWrapper(gloo)
    swallowing.report_error(RuntimeError("gone"))
    assert type(swallowing.allreduce([t(3)], AllreduceOptions())).__name__ == "_DummyWork"
    assert ring()[-1].exit_age_s is not None

    class OwnWork(dist.Work):
        def wait(self, timeout=None):
            return True

    class Own(ProcessGroup):
        def allreduce(self, tensors, opts):
            return OwnWork()

    work = Own(0, 1).allreduce([t(2)], AllreduceOptions())
    assert type(work) is OwnWork
    assert ring()[-1].exit_age_s is None
    work.wait()
    assert ring()[-1].exit_age_s is not None


def test_with_a_new_quorum_the_sequence_begins_again_and_what_was_open_is_given_up(
    gloo, ring, store, recording, reader
):
    old = gloo.allreduce([t(3)], AllreduceOptions())
    gloo.allreduce([t(3)], AllreduceOptions()).wait()
    configure(gloo, store, 5)
    gloo.allreduce([t(3)], AllreduceOptions()).wait()
    old.wait()
    assert [(e.quorum, e.seq) for e in ring()] == [(4, 1), (4, 2), (5, 1)]
    assert ring()[0].error == "RuntimeError: given up: the group was configured for quorum 5"
    (head,) = reader.heads(NOW)
    assert (head.enqueued, head.completed, head.size) == (1, 1, 1)
    assert reader.times()["reconfigure"].done == 2


def test_a_group_without_a_manager_may_have_an_id_that_is_no_quorum(gloo, ring, store):
    configure(gloo, store, 2**62)
    gloo.allreduce([t(3)], AllreduceOptions()).wait()
    assert [(e.quorum, e.seq) for e in ring()] == [(None, 1)]


def test_a_second_group_has_a_name_of_its_own(gloo, ring, store):
    other = configure(ProcessGroupGloo(timeout=timedelta(seconds=5)), store, 7)
    for group in (gloo, other, gloo):
        group.allreduce([t(1)], AllreduceOptions()).wait()
    assert [(e.group, e.seq) for e in ring()] == [
        ("torchft", 1), ("torchft.2", 1), ("torchft", 2)]  # fmt: skip


def test_a_public_function_over_a_group_of_torchfts_is_counted_once(gloo, ring):
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        dist.all_reduce(t(4), group=gloo, op=dist.ReduceOp.MAX)
    finally:
        dist.destroy_process_group()
    assert [(e.group, e.op, e.reduce_op) for e in ring()] == [("torchft", "all_reduce", "MAX")]
    assert ring()[0].exit_age_s is not None


def test_a_group_that_throws_everything_away_is_not_recorded(recording, ring):
    ProcessGroupDummy(0, 1).allreduce([t(1)], AllreduceOptions()).wait()
    assert ring() == ()


def test_a_group_of_the_users_own_is_recorded(recording, ring):
    class Own(ProcessGroup):
        def allreduce(self, tensors, opts):
            return None

    Own(0, 1).allreduce([t(2)], AllreduceOptions())
    assert [(e.op, e.sizes_in, e.exit_age_s is None) for e in ring()] == [
        ("all_reduce", ((2,),), False)]  # fmt: skip


def test_a_wrong_call_fails_as_torchft_lets_it_fail(gloo, ring):
    with pytest.raises(TypeError, match="missing 2 required positional arguments"):
        gloo.allreduce()
    with pytest.raises(RuntimeError, match="does not support reduce_scatter"):
        gloo.reduce_scatter([t(1)], [[t(1)]], None)
    assert [e.error for e in ring()] == [
        "RuntimeError: ProcessGroupGloo does not support reduce_scatter."]  # fmt: skip


def test_a_failure_of_ours_never_reaches_torchft(gloo, ring, recording, monkeypatch):
    monkeypatch.setattr(recording.page, "enter", lambda *a: 1 / 0)
    x = t(2)
    with pytest.warns(RuntimeWarning, match="ZeroDivisionError"):
        gloo.allreduce([x], AllreduceOptions()).wait()
    gloo.allreduce([x], AllreduceOptions()).wait()
    assert x.tolist() == [1, 1]


def test_after_a_fork_nothing_is_recorded(gloo, ring):
    collectives._stop()
    gloo.allreduce([t(1)], AllreduceOptions()).wait()
    assert ring() == ()


def test_signatures_stay(recording):
    for cls, name in (
        (torchft_manager.Manager, "__init__"),
        (torchft_manager.Manager, "allreduce"),
        (torchft_manager.Manager, "should_commit"),
        (torchft_manager._ManagedWork, "wait"),
        (torchft_groups_module.ProcessGroupWrapper, "allreduce"),
        (torchft_groups_module.ProcessGroupBaby, FORMS),
    ):
        wrapped = getattr(cls, name)
        assert inspect.signature(wrapped) == inspect.signature(inspect.unwrap(wrapped))
        assert wrapped.__name__ == name


def test_transports_of_the_users_own_are_timed(recording, reader):
    class Transport:
        def send_checkpoint(self, dst_ranks, step, state_dict, timeout):
            return "sent"

    torchft.time_transport(Transport())
    torchft.time_transport(Transport())
    assert Transport().send_checkpoint([1], 2, {}, None) == "sent"
    assert reader.times()["staging"].done == 1


def test_sends_and_receives_are_counted_by_peer_and_tag_and_anew_with_each_quorum(
    recording, reader, store, ring
):
    """Between two groups of two, each with a thread of its own."""
    groups = [ProcessGroupGloo(timeout=timedelta(seconds=30)) for _ in range(2)]

    def exchange(rank, quorum):
        configure(groups[rank], store, quorum, rank, 2)
        if rank == 0:
            groups[0].send([t(3)], 1, 5).wait()
            groups[0].send([t(3)], 1, 5).wait()
        else:
            groups[1].recv([t(3)], 0, 5).wait()
            groups[1].recv([t(3)], 0, 5).wait()

    with ThreadPoolExecutor(2) as pool:
        for quorum in (4, 5):
            for future in [pool.submit(exchange, rank, quorum) for rank in (0, 1)]:
                future.result()
    sends = [(e.quorum, e.seq, e.root, e.tag) for e in ring() if e.op == "send"]
    receives = [(e.quorum, e.seq, e.root, e.tag) for e in ring() if e.op == "recv"]
    assert sends == [(4, 1, 1, 5), (4, 2, 1, 5), (5, 1, 1, 5), (5, 2, 1, 5)]
    assert receives == [(4, 1, 0, 5), (4, 2, 0, 5), (5, 1, 0, 5), (5, 2, 0, 5)]
    assert {(r.peer, r.tag, r.sends, r.posted, r.unfinished) for r in reader.transfers(NOW)} == {
        (1, 5, 1, 2, 0), (0, 5, 0, 2, 0)}  # fmt: skip
    assert [head.enqueued for head in reader.heads(NOW)] == [0, 0]
    for group in groups:
        group.shutdown()


class Timed:
    """As much of a Manager as is read of it."""

    _step = 0

    def __init__(self, pg=None, **timeouts):
        self._pg = pg
        vars(self).update(timeouts)


@pytest.mark.parametrize(
    ("manager", "timeouts"),
    [
        (Timed(), {}),
        (Timed(_timeout=timedelta(seconds=30)), {"collective": 30.0, "commit": 30.0}),
        (Timed(_quorum_timeout=timedelta(minutes=2)), {"quorum": 120.0}),
        (Timed(_timeout=timedelta(seconds=30), pg=Timed(_timeout=timedelta(seconds=5))),
         {"collective": 5.0, "commit": 30.0}),
        (Timed(_timeout=timedelta(seconds=30), pg=Timed(_timeout=60.0)),
         {"collective": 30.0, "commit": 30.0}),
        (Timed(_timeout="soon", _quorum_timeout=-1), {}),
    ],
    ids=["nothing", "usual", "quorum", "a shorter group", "a longer group", "odd ones"],
)  # fmt: skip
def test_what_a_manager_has_of_timeouts_is_told(recording, reader, manager, timeouts):
    torchft.tell_observer(torchft.Observer.observe, manager)
    assert reader.timeouts == timeouts


def test_a_manager_from_before_the_attach_is_read_with_its_first_step(
    recording, reader, monkeypatch
):
    monkeypatch.setenv("TORCHFT_LIGHTHOUSE", "http://head:29510")
    manager = Timed(_timeout=timedelta(seconds=30))
    recording.observe_manager(manager)
    assert (reader.timeouts, reader.lighthouse) == ({}, None)
    torchft.tell_observer(torchft.Observer.begin_step, manager)
    assert reader.timeouts == {"collective": 30.0, "commit": 30.0}
    assert reader.lighthouse == "head:29510"


@pytest.mark.parametrize(
    ("address", "published"),
    [
        ("http://10.0.0.1:29510", "10.0.0.1:29510"),
        ("head:29510", "head:29510"),
        ("http://[::1]:29510/", "[::1]:29510"),
        ("http://user:secret@head:29510", "head:29510"),
        ("http://head", None),
        ("http://head:many", None),
        ("", None),
        (None, None),
    ],
)
def test_a_lighthouse_is_told_by_host_and_port(recording, reader, address, published):
    torchft.tell_observer(torchft.Observer.note_lighthouse, Timed(_group_rank=1), address)
    assert reader.lighthouse is None  # rank 0 asks for the whole group
    torchft.tell_observer(torchft.Observer.note_lighthouse, Timed(_group_rank=0), address)
    assert reader.lighthouse == published


# -- a TorchFT that nobody here knows --------------------------------------------------------------


def test_what_a_version_does_not_have_is_said_at_attach_in_the_state_and_as_a_metric(
    recording, reader, monkeypatch, recwarn
):
    class Manager:
        def start_quorum(self):
            """As ever; nothing else is."""

    class Group(dist.ProcessGroup):
        def form(self):
            """What `configure` was called."""

    groups = types.SimpleNamespace(ProcessGroup=Group, __file__="/x/torchft/process_group.py")
    monkeypatch.setitem(sys.modules, "torchft.process_group", groups)
    manager = types.SimpleNamespace(Manager=Manager)
    monkeypatch.setitem(sys.modules, "torchft.manager", manager)
    monkeypatch.setattr(torchft, "_unhooked", set())
    monkeypatch.setattr(torchft_groups, "install", lambda _: None)
    torchft.install(recording)  # for this page: nothing is patched twice
    torchft._try(torchft._patch_groups, "torchft.process_group")
    torchft._try(torchft._patch_manager, "torchft.manager")
    lost = (
        "Manager._async_quorum", "Manager._reconfigure_pg", "Manager.should_commit",
        "Manager.wait_quorum", "ProcessGroup.reconfigure",
    )  # fmt: skip
    assert reader.unhooked == lost
    assert [str(warning.message).partition(", so ")[2] for warning in recwarn] == [
        "new quorums' process groups are not seen there",
        "steps and waits are not seen there",
    ]
    process = wire.Process(alive=True, state="S")
    report = wire.StateReport(identity(), process, None, unhooked=lost)
    assert wire.parse_state(json.loads(json.dumps(wire.to_json(report)))) == report
    (metric,) = [
        sample for family in RankCollector(lambda: report, lambda: "").collect()
        for sample in family.samples if sample.name == "lightkeeper_rank_unhooked_functions"
    ]  # fmt: skip
    assert metric.value == len(lost)


@pytest.mark.integration
def test_of_this_version_everything_is_hooked(job):
    assert job[0]["a"].unhooked == ()
