"""What Prometheus is asked about hosts, and what is made of its answers."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from lightkeeper.monitor.act.http import Fetcher
from lightkeeper.monitor.act.prometheus import ANSWER_MAX_BYTES, Prometheus
from lightkeeper.monitor.act.schedulers.base import NotDone
from lightkeeper.monitor.act.testimonies import QUERIES
from lightkeeper.monitor.model.queries import PrometheusQuery
from lightkeeper.worker_server.wire import Weight
from tests.monitor.act.fake_prometheus import FakePrometheus, row

pytestmark = pytest.mark.integration  # servers on loopback, real deadlines
OWN = PrometheusQuery("own", "own_metric > 0", Weight.SLOW, "{device} is bad: {value}", "{device}")
SECRET = "Bearer s3cr3t"


@pytest.fixture
def server():
    with closing(FakePrometheus()) as fake:
        yield fake


@pytest.fixture
def ask(server):
    fetcher = Fetcher()

    def asked(*queries: PrometheusQuery, age_s: float = 7200.0, timeout_s: float = 5.0):
        """The testimonies, and why not all could be read."""
        source = Prometheus(f"{server.url}/prom/", fetcher, lambda: queries, lambda: age_s, SECRET)
        said = []
        try:
            for names, each in source.testimonies((), timeout_s):
                said.append((names, each))
        except NotDone as exc:
            return said, str(exc)
        return said, None

    yield asked
    fetcher.close()


def words(said):
    return [(each.weight, each.code, each.text, each.device) for _, each in said]


# -- questions ---------------------------------------------------------------------------------


def test_every_shipped_row_is_asked_once_with_the_ages_of_the_run(server, ask):
    assert ask() == ([], None)
    assert len(server.asked) == len(QUERIES) + 1
    assert not any("$" in query for query in server.asked)
    assert any("[3600s]" in query for query in server.asked)
    assert any("offset 7200s" in query for query in server.asked)
    assert server.authorization == {SECRET}


@pytest.mark.parametrize(
    ("age_s", "window", "run"),
    [(0.0, "1s", "1s"), (600.4, "600s", "600s"), (1e9, "3600s", "1296000s")],
)
def test_the_window_is_the_age_of_the_run_and_an_hour_at_most(server, ask, age_s, window, run):
    ask(age_s=age_s)
    (faults,) = {query for query in server.asked if "node_edac_unc" in query}
    assert f"[{window}]" in faults
    (mounts,) = {query for query in server.asked if "node_filesystem_readonly" in query}
    assert f"offset {run} " in mounts


def test_rows_of_the_policy_come_on_top_replace_or_silence(server, ask):
    ask(OWN, PrometheusQuery("gpu-throttled", "mine > 1"), PrometheusQuery("xid-{value}", ""))
    assert any(query == "own_metric > 0" for query in server.asked)
    assert any(query == "mine > 1" for query in server.asked)
    assert not any("THERMAL_VIOLATION" in query or "XID" in query for query in server.asked)
    assert not any(query == "" for query in server.asked)


# -- answers -----------------------------------------------------------------------------------


def test_a_series_testifies_in_the_words_of_its_row(server, ask):
    gpu = {"Hostname": "gpu-7", "gpu": "3", "instance": "10.0.0.7:9400"}
    server.series = {
        "XID_ERRORS == 79": [row("79", **gpu)],
        "XID_ERRORS > 0": [row("79", **gpu), row("31", **{**gpu, "gpu": "5"})],
        "PCIE_REPLAY": [row("12.3456", **gpu)],
        "node_filesystem_readonly": [row(mountpoint="/data", device="nvme0n1", instance="n:9")],
    }
    said, why = ask()
    assert why is None
    assert words(said) == [
        (Weight.BROKEN, "xid-79", "GPU 3: Xid 79", "GPU 3"),
        (Weight.CONTEXT, "xid-79", "GPU 3: Xid 79", "GPU 3"),
        (Weight.CONTEXT, "xid-31", "GPU 5: Xid 31", "GPU 5"),
        (Weight.SLOW, "pcie-replays", "GPU 3: 12.3 PCIe replays a second", "GPU 3"),
        (Weight.BROKEN, "filesystem-read-only", "/data has become read-only", "nvme0n1"),
    ]
    assert said[0][0] == ("gpu-7", "10.0.0.7", "")


def test_node_exporters_are_named_by_their_uname(server, ask):
    server.series = {
        "node_uname_info": [row(instance="10.0.0.7:9100", nodename="gpu-7.example")],
        "node_edac": [row(instance="10.0.0.7:9100", controller="0")],
    }
    assert ask()[0][0][0] == ("10.0.0.7", "gpu-7.example")


def test_a_row_may_name_the_label_of_the_host(server, ask):
    server.series = {"own_metric": [row(device="eth0", instance="a:1", rack="r", box="gpu-7")]}
    (((names, said),), _) = ask(PrometheusQuery("own", "own_metric", Weight.SLOW, "x", host="box"))
    assert names == ("gpu-7", "")
    assert said.text == "x"


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "", "x", "0x10", "1_0_"])
def test_a_value_that_is_no_number_says_nothing(server, ask, value):
    server.series = {"own_metric": [row(value), row("1e300", device="a")]}
    assert len(ask(OWN)[0]) == 1


def test_labels_are_cut_and_never_run(server, ask):
    odd = "\x1b[31m{value}{__class__}\n" + "x" * 500
    server.series = {"own_metric": [row("7", device=odd)]}
    (((_, said),), _) = ask(OWN)
    assert said.text.startswith("[31m{value}{__class__} xx")
    assert (len(said.text), len(said.device)) == (200, 32)
    assert said.text.isprintable()


# -- trouble -----------------------------------------------------------------------------------

NESTED = b'{"status":"success","data":{"result":' + b"[" * 200_000
GOOD = {"DBE_VOL": [row(gpu="1", Hostname="a")], "io_stalled": [row(instance="a")]}


@pytest.mark.parametrize(
    ("status", "raw", "why"),
    [
        (400, b'{"status":"error","error":"bad_data"}', 'own: answered 400: {"status":"error"'),
        (422, b"execution", "own: answered 422: execution"),
        (200, b"<html>", "own: no answer of Prometheus: JSON is malformed"),
        (200, b"", "own: no answer of Prometheus: Input data was truncated"),
        (200, b"[]", "own: no answer of Prometheus: Expected `object`, got `array`"),
        (200, b'{"data":{"result":[1.0,"2"]}}', "own: no answer of Prometheus: Expected `object`"),
        (200, b'{"data":{"result":[{"metric":{"a":7},"value":[1,"2"]}]}}', "own: no answer"),
        (200, b'{"data":{"result":[{"metric":{"a":"\xff"},"value":[1,"2"]}]}}', "own: no answer"),
        (200, NESTED, "own: no answer"),
        (200, b" " * (ANSWER_MAX_BYTES + 1), "own: garbage: body over"),
    ],
    ids=range(10),
)  # fmt: skip
def test_a_bad_answer_costs_only_its_row(server, ask, status, raw, why):
    server.raw, server.series = {"own_metric": (status, raw)}, GOOD
    said, trouble = ask(OWN)
    assert trouble.startswith(why)
    assert [each.code for _, each in said] == ["ecc-uncorrected", "io-pressure"]


@pytest.mark.parametrize(("status", "raw"), [(302, b""), (401, b"no"), (503, b"starting")])
def test_what_will_not_pass_ends_the_look_and_what_came_before_counts(server, ask, status, raw):
    server.raw, server.series = {"io_stalled": (status, raw)}, GOOD
    said, trouble = ask()
    assert trouble == f"answered {status}" + (f": {raw.decode()}" if raw else "")
    assert [each.code for _, each in said] == ["ecc-uncorrected"]
    assert "io_stalled" in server.asked[-1]


def test_a_flood_of_series_is_cut(server, ask):
    server.series = {"own_metric": [row(device=str(n)) for n in range(20_000)]}
    assert len(ask(OWN)[0]) == 10_000


def test_one_that_hangs_costs_the_deadline_once_and_no_secret_is_told(server, ask):
    server.hanging = True
    began = time.monotonic()
    said, trouble = ask(timeout_s=0.4)
    assert time.monotonic() - began < 3.0
    assert said == []
    assert trouble == "timeout: no full answer within 0.4 s"
    assert len(server.asked) == 1
    server.close()
    _, trouble = ask()
    assert "s3cr3t" not in trouble
    assert "prom" not in trouble
