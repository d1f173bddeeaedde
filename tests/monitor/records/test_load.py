"""From files, folders and zips to a job; one bad file spoils its rank only."""

import json
import os
import zipfile

import pytest

from lightkeeper.monitor.records import files
from lightkeeper.monitor.records.files import load_job
from tests.monitor.records.answers import answer, call
from tests.monitor.records.dumps import CREATED, as_json, as_pickle, entry, gloo, nccl


def write(folder, **values):
    """Files by name, dots as `__`; dumps are pickled."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        data = as_pickle(value) if isinstance(value, dict) else value
        (folder / name.replace("__", ".")).write_bytes(data)
    return folder


def ranks(job):
    return tuple(job.ranks)


def reasons(job):
    return [(problem.path.rpartition("/")[2], problem.reason, problem.rank)
            for problem in job.problems]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("_dump_3", 3),
        ("3", 3),
        ("rank_0012", 12),
        ("nccl_trace_rank_7.pickle", 7),
        ("dump8.pkl", 8),
        ("gloo-4.JSON", 4),
        ("job2_rank", None),
        ("fault_injection.log", None),
        ("dump_rank3_host7_2026.json", 3),
        ("dump_rank3_1732280000.pickle", 3),
        ("local_rank_0_rank_5", 5),
        ("rank_1_of_8", 1),
        ("rank3_10.0.0.17", 3),
        ("rank3.log", None),
        ("trace_1732280000", None),
    ],
)
def test_the_rank_is_what_the_name_says_rank_of_or_ends_in(name, rank) -> None:
    assert files.rank_of(name) == rank


def test_a_folder_is_read_with_its_folders_and_other_files_are_passed_over(tmp_path) -> None:
    write(tmp_path / "node0", _dump_0=nccl(entry()), fault_injection__log=b"Rank 0\n")
    write(tmp_path / "node1", _dump_1__json=as_json(gloo(entry())), __hidden_1=b"x")
    records = load_job([tmp_path])
    assert ranks(records) == (0, 1)
    assert records.problems == ()


def test_a_zip_and_single_files_are_read(tmp_path) -> None:
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as bundle:
        bundle.writestr("x/dump_0", as_pickle(nccl(entry())))
        bundle.writestr("x/readme.txt", "about rank 5")
    write(tmp_path, dump_1=nccl(entry()))
    records = load_job([tmp_path / "b.zip", tmp_path / "dump_1"])
    assert ranks(records) == (0, 1)
    assert records.ranks[0].path == f"{tmp_path}/b.zip/x/dump_0"


def test_a_file_that_is_named_twice_is_read_once(tmp_path) -> None:
    write(tmp_path, dump_0=nccl(entry()))
    records = load_job([tmp_path, tmp_path / "dump_0"])
    assert (len(records), records.problems) == (1, ())


BAD = {
    "that ends in the middle": ("d_1", as_pickle(nccl(entry()))[:50],
                                "broken pickle: it ends in the middle", 1),
    "that is empty": ("d_9", b"", "empty", 9),
    "of another name that ends in a number": ("notes_2024", b"hello",
                                              "neither a pickle nor JSON", None),
    "that is no zip": ("b__zip", b"PK\x05\x06 not", "File is not a zip file", None),
}  # fmt: skip


@pytest.mark.parametrize(("name", "data", "reason", "rank"), BAD.values(), ids=BAD)
def test_a_bad_file_is_one_problem_and_spoils_its_rank_only(
    name, data, reason, rank, tmp_path
) -> None:
    records = load_job([write(tmp_path, d_0=nccl(entry()), **{name: data})])
    assert ranks(records) == (0,)
    assert reasons(records) == [(name.replace("__", "."), reason, rank)]
    assert records.silent == (1, 2, 3, *((rank,) if rank == 9 else ()))


def test_a_path_that_is_not_there_is_a_problem(tmp_path) -> None:
    records = load_job([tmp_path / "nothing"])
    assert reasons(records) == [("nothing", "No such file or directory", None)]
    assert len(records) == 0


def test_a_zip_that_would_unpack_for_days_is_a_problem(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(files, "MAX_ZIP", 1000)
    with zipfile.ZipFile(tmp_path / "b.zip", "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("d_0", b"\0" * 10_000)
    assert reasons(load_job([tmp_path])) == [("b.zip", "a zip of more than 0 GiB", None)]


def test_what_is_no_file_is_a_problem(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe_0")
    records = load_job([tmp_path / "pipe_0"])
    assert reasons(records) == [("pipe_0", "neither a file nor a folder", None)]


def test_a_file_larger_than_any_record_is_a_problem(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(files, "MAX_FILE", 100)
    write(tmp_path, d_0=nccl(entry()))
    assert reasons(load_job([tmp_path])) == [("d_0", "more than 100 bytes", 0)]


def test_of_two_records_of_a_rank_the_newer_counts(tmp_path) -> None:
    write(tmp_path, a_0=nccl(entry(5, 9)), b_0=nccl(entry(1, 2)))
    records = load_job([tmp_path])
    assert records.columns["seq"].tolist() == [9]
    assert [problem.path for problem in records.problems] == [f"{tmp_path}/b_0"]
    assert records.problems[0].reason.endswith("a_0 is of the same rank and newer")


@pytest.mark.parametrize(
    ("hours", "left"), [((9, 9, 9, 7), (0, 1, 2)), ((9, 7, 7, 7), (0, 1, 2, 3))],
    ids=["a dead rank's last dump is of the run before", "one clock is wrong"],
)  # fmt: skip
def test_what_an_earlier_run_left_is_no_record_of_this_one(hours, left, tmp_path) -> None:
    times = [CREATED + hour * 3600 * 10**9 for hour in hours]
    dumps = {f"d_{r}": nccl(entry(time_created_ns=time)) for r, time in enumerate(times)}
    records = load_job([write(tmp_path, **dumps)])
    assert (ranks(records), records.expected) == (left, (0, 1, 2, 3))
    assert len(reasons(records)) == 4 - len(left)


def test_of_torchfts_quorums_the_newest_counts(tmp_path) -> None:
    groups = {"": {"name": "", "desc": "", "ranks": "[0, 2]"}}
    row = entry(0, 1, process_group=("", ""), pg_id=3)
    nameless = nccl(row, pg_config=groups, pg_status={})
    for quorum, folder in ((4, "fr_quorum_4"), (11, "fr_quorum_11")):
        members = (0, 2) if quorum == 11 else (0, 2, 4)
        write(tmp_path / folder, **{str(rank): nameless for rank in members})
    records = load_job([tmp_path])
    assert ranks(records) == (0, 2)
    assert records.groups[0].generation == 11
    assert {problem.reason for problem in records.problems} == {"left out: quorum 11 is newer"}
    assert records.silent == ()


def test_progress_counts_files(tmp_path) -> None:
    write(tmp_path, d_0=nccl(entry()), d_1=b"")
    seen = []
    load_job([tmp_path], progress=lambda done, whole: seen.append((done, whole)))
    assert seen == [(1, 2), (2, 2)]


def test_processes_read_the_same_as_one(tmp_path) -> None:
    write(tmp_path, d_2=b"", **{f"d_{rank}": nccl(entry(rank, rank)) for rank in (0, 1, 3)})
    by_one, two = load_job([tmp_path], workers=1), load_job([tmp_path], workers=2)
    assert (by_one.ranks, by_one.groups, by_one.problems) == (two.ranks, two.groups, two.problems)
    assert (by_one.columns["seq"] == two.columns["seq"]).all()


class _NoPool:
    def __init__(self, *args, **options) -> None:
        raise files.BrokenProcessPool("no more processes")


def test_without_processes_it_reads_by_itself(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(files, "ProcessPoolExecutor", _NoPool)
    write(tmp_path, d_0=nccl(entry()), d_1=nccl(entry()))
    assert ranks(load_job([tmp_path], workers=2)) == (0, 1)


def test_a_bundle_of_worker_servers_answers_is_a_job_of_named_ranks(tmp_path) -> None:
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as bundle:
        for group in ("rg_0", "rg_1"):
            for rank in (0, 1):
                bundle.writestr(f"{group}.{rank}.json",
                                json.dumps(answer(call(), group=group, rank=rank)))  # fmt: skip
        bundle.writestr("state.json", json.dumps({"schema": 1, "identity": {}}))
    records = load_job([tmp_path / "b.zip"])
    assert list(records.names.values()) == ["rg_0.0", "rg_0.1", "rg_1.0", "rg_1.1"]
    assert records.problems == ()
    assert ranks(records) == (0, 1, 2, 3)


def test_an_answer_that_cannot_be_read_is_a_silent_rank_of_its_name(tmp_path) -> None:
    write(tmp_path, **{"rg_0.0__json": json.dumps(answer()).encode(), "rg_7.0__json": b"{"})
    records = load_job([tmp_path])
    assert records.name(records.problems[0].rank) == "rg_7.0"
    assert [records.name(rank) for rank in records.silent] == ["rg_0.1", "rg_7.0"]


def test_the_newer_of_two_answers_counts(tmp_path) -> None:
    for folder, moved in (("a", 0), ("b", 5_000_000_000)):
        torch = gloo(entry(0, 1, time_created_ns=1_758_581_237_000_000_000 + moved))
        value = answer(call(1, 1 if moved else 9, torch_ids=[0]), torch=torch)
        write(tmp_path / folder, **{"rg_0.0__json": json.dumps(value).encode()})
    records = load_job([tmp_path])
    assert records.columns["seq"].tolist() == [1]
