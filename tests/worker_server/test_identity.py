"""Who a process is, by the variables of its launchers, the innermost first."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightkeeper.worker_server.rank.identity import (
    LAUNCHERS,
    identity_from,
    is_rank,
    launcher_of,
    name_in_replica_id,
    program_of,
)
from lightkeeper.worker_server.rank.settings import SettingError

TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "GROUP_RANK": "1", "LOCAL_WORLD_SIZE": "4",
    "ROLE_RANK": "5", "TORCHELASTIC_RUN_ID": "run-7", "TORCHELASTIC_RESTART_COUNT": "0",
}  # fmt: skip
TORCHFT = {"REPLICA_GROUP_ID": "3", "TORCHFT_LIGHTHOUSE": "http://head:29510"}
BATCH_SCRIPT = {
    "SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "pretrain", "SLURM_PROCID": "0", "SLURM_NTASKS": "4",
    "SLURM_NODEID": "0", "SLURM_LOCALID": "0", "SLURMD_NODENAME": "gpu017",
}  # fmt: skip
SRUN = {
    **BATCH_SCRIPT, "SLURM_PROCID": "2", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_NODEID": "1", "SLURMD_NODENAME": "gpu018",
}  # fmt: skip
ARRAY = {"SLURM_ARRAY_JOB_ID": "4700", "SLURM_ARRAY_TASK_ID": "3"}
HET = {"SLURM_HET_SIZE": "2", "SLURM_JOB_ID_HET_GROUP_0": "4711",
       "SLURM_JOB_ID_HET_GROUP_1": "4712", "SLURM_JOB_ID": "4712",
       "SLURM_STEP_NUM_TASKS": "6", "SLURM_PROCID": "5"}  # fmt: skip
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "6", "OMPI_COMM_WORLD_SIZE": "8"}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "train-3-x7"}
INDEXED_JOB = {**POD, "JOB_COMPLETION_INDEX": "3", "WORLD_SIZE": "4"}
OURS = {"LIGHTKEEPER_JOB": "mine", "LIGHTKEEPER_HOST": "node1", "REPLICA_GROUP": "rg_1"}


def who(*environs, hostname="box"):
    merged = {name: value for environ in environs for name, value in environ.items()}
    return identity_from(merged, 7, "abc", lambda: hostname)


@pytest.mark.parametrize(
    ("environs", "rank", "of", "job", "host"),
    [
        pytest.param([], "job.0", 1, "job", "box", id="nobody"),
        pytest.param([TORCHRUN], "job.5", 8, "run-7", "box", id="torchrun"),
        pytest.param([{"RANK": "03", "WORLD_SIZE": "8"}], "job.3", 8, "job", "box", id="as-torch"),
        pytest.param([TORCHRUN, {"TORCHELASTIC_RUN_ID": "none"}], "job.5", 8, "job", "box",
                     id="torchrun-without-run-id"),
        pytest.param([TORCHRUN, {"TORCHELASTIC_RUN_ID": "0b8f0c5e-3d2a-4b4e-9d54-2f6a1f0c8d11"}],
                     "job.5", 8, "job", "box", id="torchrun-standalone"),
        pytest.param([TORCHRUN, TORCHFT], "3.5", 8, "job", "box", id="torchft"),
        pytest.param([TORCHRUN, TORCHFT, OURS], "rg_1.5", 8, "mine", "node1", id="ours-first"),
        pytest.param([SRUN], "job.2", 4, "pretrain-4711", "gpu018", id="srun"),
        pytest.param([SRUN, TORCHRUN], "job.5", 8, "pretrain-4711", "gpu018",
                     id="srun-torchrun"),
        pytest.param([SRUN, TORCHRUN, TORCHFT, OURS], "rg_1.5", 8, "mine", "node1",
                     id="srun-torchrun-torchft-ours"),
        pytest.param([BATCH_SCRIPT], "job.0", 1, "pretrain-4711", "gpu017",
                     id="python-in-the-batch-script"),
        pytest.param([BATCH_SCRIPT, TORCHRUN], "job.5", 8, "pretrain-4711", "gpu017",
                     id="torchrun-in-the-batch-script"),
        pytest.param([SRUN, ARRAY], "job.2", 4, "pretrain-4700_3", "gpu018", id="sweep"),
        pytest.param([SRUN, ARRAY, TORCHRUN, TORCHFT], "3.5", 8, "pretrain-4700", "gpu018",
                     id="array-of-groups"),
        pytest.param([SRUN, HET], "job.5", 6, "pretrain-4711", "gpu018", id="heterogeneous"),
        pytest.param([SRUN, OPEN_MPI], "job.6", 8, "pretrain-4711", "gpu018", id="mpirun-in-slurm"),
        pytest.param([PMI], "job.1", 2, "job", "box", id="mpiexec"),
        pytest.param([POD, TORCHRUN], "job.5", 8, "run-7", "pod:box", id="pod-torchrun"),
        pytest.param([INDEXED_JOB], "job.3", 4, "job", "pod:box", id="indexed-job"),
        pytest.param([INDEXED_JOB, {"K8S_NODE_NAME": "ip-10-2"}], "job.3", 4, "job", "ip-10-2",
                     id="indexed-job-told-its-node"),
        pytest.param([INDEXED_JOB, TORCHRUN, OURS], "rg_1.5", 8, "mine", "node1",
                     id="indexed-job-torchrun-ours"),
    ],
)  # fmt: skip
def test_rank_and_size_come_from_the_innermost_launcher_job_and_host_from_the_outermost(
    environs, rank, of, job, host
):
    identity = who(*environs)
    assert (identity.rank, identity.world_size, identity.job, identity.host) == (
        rank,
        of,
        job,
        host,
    )


def test_empty_variables_say_nothing():
    empty = dict.fromkeys([*TORCHRUN, *TORCHFT, *SRUN, *OURS, *ARRAY, *OPEN_MPI], "")
    assert who(empty) == who()


def test_the_hosts_own_name_is_the_default():
    assert identity_from({}, 7, "abc").host == socket.gethostname()


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({"RANK": "x"}, "RANK"), ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK"),
        ({"RANK": "-1"}, "RANK"), ({"WORLD_SIZE": "0"}, "WORLD_SIZE"),
        ({"RANK": "0", "WORLD_SIZE": "two"}, "WORLD_SIZE"),
        ({**SRUN, "SLURM_PROCID": "4"}, "SLURM_PROCID=4 is outside SLURM_STEP_NUM_TASKS=4"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_SIZE"),
        ({**POD, "JOB_COMPLETION_INDEX": "0"}, "set it to the Job's `completions`"),
    ],
    ids=str,
)  # fmt: skip
def test_a_rank_that_makes_no_sense_is_refused_by_name(environ, names):
    with pytest.raises(SettingError, match=names):
        who(environ)


PYTHON = ("/usr/bin/python3", "train.py")


@pytest.mark.parametrize(
    ("environ", "command", "expected"),
    [
        pytest.param({}, PYTHON, False, id="nobody"),
        pytest.param(TORCHRUN, PYTHON, True, id="torchrun"),
        pytest.param(SRUN, PYTHON, True, id="srun"),
        pytest.param(BATCH_SCRIPT, PYTHON, False, id="the-batch-script-itself"),
        pytest.param(INDEXED_JOB, PYTHON, True, id="indexed-job"),
        pytest.param({**POD, "JOB_COMPLETION_INDEX": "0"}, PYTHON, True, id="indexed-job-no-size"),
        pytest.param(OPEN_MPI, PYTHON, True, id="open-mpi"),
        pytest.param(SRUN, ("python", "/bin/torchrun", "x.py"), False, id="torchrun-itself"),
        pytest.param(SRUN, ("python", "-m", "torch.distributed.run"), False, id="and-by-module"),
        pytest.param({**POD, "RANK": "0", "WORLD_SIZE": "2"}, ("python", "-u", "/bin/torchrun"),
                     False, id="torchrun-in-a-pod-of-an-operator-that-sets-rank"),
        pytest.param(SRUN, ("python", "/bin/accelerate", "launch", "x.py"), False, id="accelerate"),
        pytest.param(SRUN, ("python", "train.py", "-m", "torchrun"), True, id="an-argument"),
        pytest.param(SRUN, ("python", "/bin/ray", "start", "--head"), False, id="ray-on-a-node"),
        pytest.param(SRUN, ("python", "/x/workers/default_worker.py"), False, id="of-ray-yet"),
    ],
)  # fmt: skip
def test_a_rank_is_what_a_launcher_started_and_is_no_launcher(environ, command, expected):
    assert is_rank(environ, command) is expected


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (["python", "a.py", "-m", "b"], "a.py"), (["python", "-m", "pkg.mod", "x"], "pkg.mod"),
        (["python", "-um", "pkg"], "pkg"), (["python", "-mpkg"], "pkg"),
        (["python", "-W", "error", "-X", "dev", "a.py"], "a.py"),
        (["python", "-Werror", "-Ic", "print()"], ""), (["python"], ""), ([], ""),
        (["python", "--check-hash-based-pycs", "never", "a.py"], "a.py"), (["python", "-"], "-"),
    ],
    ids=str,
)  # fmt: skip
def test_the_program_of_a_python_command_line(command, program):
    assert program_of(command) == program


variables = st.sampled_from(
    sorted({name for environ in (TORCHRUN, TORCHFT, SRUN, ARRAY, HET, OPEN_MPI, PMI, INDEXED_JOB,
                                 OURS, {"K8S_NODE_NAME": "", "SLURM_JOBID": ""})
            for name in environ})
)  # fmt: skip
values = st.one_of(st.integers(-1, 9).map(str), st.text("rank-:/ \u00e9", max_size=5))


@given(st.dictionaries(variables, values))
def test_whatever_is_set_a_process_is_somebody_or_one_error_says_why(environ):
    is_rank(environ, PYTHON)
    try:
        identity = who(environ)
    except SettingError:
        return
    assert 0 <= identity.group_rank < identity.world_size
    assert identity.job
    assert identity.group
    assert identity.host


@given(st.dictionaries(variables, values))
def test_a_launcher_further_out_never_changes_the_rank(environ):
    inner = {**environ, "RANK": "5", "WORLD_SIZE": "8"}
    assert launcher_of(inner) is LAUNCHERS[0]
    assert (who(inner).group_rank, who(inner).world_size) == (5, 8)


@given(st.dictionaries(variables, values))
def test_our_own_variables_always_win(environ):
    identity = who(environ, {"RANK": "0", "WORLD_SIZE": "1"}, OURS)
    assert (identity.job, identity.group, identity.host) == ("mine", "rg_1", "node1")


UUID = "6c1d3f0e-7f3c-4f6e-8a5e-0a4b8a3a0001"


@pytest.mark.parametrize(
    ("replica_id", "name"),
    [
        (f"my_0:{UUID}", "my_0"),
        ("my_0", "my_0"),
        (f"0:{UUID}", "0"),
        (f"torchtitan_ft_2:{UUID}", "torchtitan_ft_2"),
        (f"grüppe:{UUID}", "grüppe"),
        (None, None),
        ("", None),
        (UUID, None),
        (f"{UUID}:{UUID}", None),
        (f":{UUID}", None),
        (f"a:b:{UUID}", None),
        (f"a b:{UUID}", None),
        (f"a/b:{UUID}", None),
        (f"<b>:{UUID}", None),
        (f"-rf:{UUID}", None),
        (f"a\u202eb:{UUID}", None),
        (f"a\x1b[31m:{UUID}", None),
        (f"{'x' * 129}:{UUID}", None),
    ],
    ids=ascii,
)
def test_a_managers_name_is_taken_where_it_can_name_a_group(replica_id, name):
    assert name_in_replica_id(replica_id) == name
