"""A rank asks before it joins: LIGHTKEEPER_ADMISSION, in real processes."""

from __future__ import annotations

import pytest

from tests.worker_server.admissions import REFUSAL
from tests.worker_server.ranks import run_python

pytestmark = pytest.mark.integration

SAY = "import worker_server; r = worker_server.attach(); print(type(r).__name__)"
REFUSED = (
    "lightkeeper: this rank is refused on node1 until a person releases it: node1 is quarantined "
    "by ann: ECC; "
)


def run(code, run_dir, *words, **environ):
    return run_python(*words, "-c", code, run_dir=run_dir, LIGHTKEEPER_HOST="node1", **environ)


def test_a_refused_rank_ends_before_training_and_says_why(run_dir, monitor):
    said = monitor(REFUSAL)
    done = run(SAY, run_dir, LIGHTKEEPER_ADMISSION="refuse", LIGHTKEEPER_MONITOR=said.url,
               REPLICA_GROUP="rg_1")  # fmt: skip
    assert (done.returncode, done.stdout) == (75, "")
    assert done.stderr == f"{REFUSED}ending with status 75\n"
    assert said.questions == [{"host": ["node1"], "group": ["rg_1"]}]
    assert not list(run_dir.iterdir())


def test_an_admitted_rank_attaches_without_a_word(run_dir, monitor):
    done = run(SAY, run_dir, LIGHTKEEPER_ADMISSION="refuse", LIGHTKEEPER_MONITOR=monitor().url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Reporter\n", "")


def test_warn_says_so_and_trains_on(run_dir, monitor):
    done = run(SAY, run_dir, LIGHTKEEPER_ADMISSION="warn", LIGHTKEEPER_MONITOR=monitor(REFUSAL).url)
    assert (done.returncode, done.stdout) == (0, "Reporter\n")
    assert f"{REFUSED}it trains all the same (LIGHTKEEPER_ADMISSION=warn)" in done.stderr


@pytest.mark.parametrize("value", [None, "", "off"])
def test_nobody_asks_unless_told_to(run_dir, monitor, value):
    said = monitor(REFUSAL)
    wish = {} if value is None else {"LIGHTKEEPER_ADMISSION": value}
    done = run(SAY, run_dir, LIGHTKEEPER_MONITOR=said.url, **wish)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Reporter\n", "")
    assert not [path for path in said.asked if "admission" in path]


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:9", "http://127.0.0.1:9,http://[::1]:9"])
def test_a_monitor_that_is_away_admits(run_dir, url):
    done = run(SAY, run_dir, LIGHTKEEPER_ADMISSION="refuse", LIGHTKEEPER_MONITOR=url)
    assert done.returncode == 0
    assert done.stdout in ("Reporter\n", "NullReporter\n")


def test_a_monitor_that_does_not_answer_costs_two_seconds(run_dir, monitor):
    code = f"import time; t = time.monotonic(); {SAY}; print(time.monotonic() - t)"
    done = run(code, run_dir, LIGHTKEEPER_ADMISSION="refuse", LIGHTKEEPER_MONITOR=monitor(None).url)
    reporter, took_s = done.stdout.split()
    assert (done.returncode, reporter) == (0, "Reporter")
    assert 1.9 < float(took_s) < 15  # it does not answer for ever; more is the machine's


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"LIGHTKEEPER_ADMISSION": "yes"}, "LIGHTKEEPER_ADMISSION='yes' is none of off, warn, ref"),
        ({"LIGHTKEEPER_ADMISSION": "refuse", "LIGHTKEEPER_MONITOR": "head:1"}, "did not ask for"),
    ],
)
def test_a_setting_that_makes_no_sense_is_a_warning_and_no_end(run_dir, environ, says):
    done = run(SAY, run_dir, **environ)
    assert done.returncode == 0
    assert says in done.stderr


def test_another_thread_than_main_is_not_ended(run_dir, monitor):
    code = (
        "import threading; import worker_server\n"
        "thread = threading.Thread(target=worker_server.attach); thread.start(); thread.join()\n"
        "print('trains')"
    )
    done = run(
        code, run_dir, LIGHTKEEPER_ADMISSION="refuse", LIGHTKEEPER_MONITOR=monitor(REFUSAL).url
    )
    assert (done.returncode, done.stdout) == (0, "trains\n")
    assert "attached in another thread than main" in done.stderr


def test_the_script_may_say_it_itself(run_dir, monitor):
    code = SAY.replace("attach()", "attach(admission='refuse', group='rg_9')")
    said = monitor(REFUSAL)
    assert run(code, run_dir, LIGHTKEEPER_MONITOR=said.url).returncode == 75
    assert said.questions == [{"host": ["node1"], "group": ["rg_9"]}]


def test_a_script_that_is_only_wrapped_ends_with_the_same_status(tmp_path, run_dir, monitor):
    script = tmp_path / "train.py"
    script.write_text("print('trains')")
    words = ["-m", "worker_server", "--admission", "refuse", "--monitor", monitor(REFUSAL).url]
    done = run_python(*words, str(script), run_dir=run_dir)
    assert (done.returncode, done.stdout) == (75, "")
    assert "ending with status 75" in done.stderr


def test_it_ends_out_of_the_import_of_torch_as_well(run_dir, monitor):
    """LIGHTKEEPER_ATTACH=1 attaches at the end of `import torch`."""
    done = run(
        "import torch; print('trains')", run_dir, LIGHTKEEPER_ATTACH="1", RANK="0", WORLD_SIZE="1",
        LIGHTKEEPER_ADMISSION="refuse", LIGHTKEEPER_MONITOR=monitor(REFUSAL).url,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (75, "")
    assert f"{REFUSED}ending with status 75" in done.stderr
