"""A rank asks before it joins: LIGHTKEEPER_ADMISSION, in real processes."""

from __future__ import annotations

import pytest

from tests.worker_server.admissions import REFUSAL, FakeMonitor
from tests.worker_server.ranks import run_each, run_python

pytestmark = pytest.mark.integration

SAY = "import lightkeeper; r = lightkeeper.attach(); print(type(r).__name__)"
REFUSED = (
    "lightkeeper: this rank is refused on node1 until a person releases it: node1 is quarantined "
    "by ann: ECC; "
)


IN_A_THREAD = """
import threading, lightkeeper
thread = threading.Thread(target=lightkeeper.attach); thread.start(); thread.join()
print('trains')
"""
TIMED = f"import time; t = time.monotonic(); {SAY}; print(time.monotonic() - t)"
IN_THE_SCRIPT = SAY.replace("attach()", "attach(admission='refuse', group='rg_9')")
AWAY = ["", "http://127.0.0.1:9", "http://127.0.0.1:9,http://[::1]:9"]
SENSELESS = {
    "yes": "LIGHTKEEPER_ADMISSION='yes' is none of off, warn, refuse",
    "head:1": "did not ask for",
}


def case(code, monitor, wish="refuse", **environ):
    if wish is not None:
        environ["LIGHTKEEPER_ADMISSION"] = wish
    url = monitor if isinstance(monitor, str) else monitor.url
    return code, {"LIGHTKEEPER_HOST": "node1", "LIGHTKEEPER_MONITOR": url, **environ}


@pytest.fixture(scope="module")
def monitors():
    """Three that refuse, one that admits, one that never answers."""
    fakes = {name: FakeMonitor(REFUSAL) for name in ("refuses", "is not asked", "is told a group")}
    fakes["admits"], fakes["is silent"] = FakeMonitor(), FakeMonitor(None)
    yield fakes
    for fake in fakes.values():
        fake.close()


@pytest.fixture(scope="module")
def ended(monitors, module_dir):
    refuses = monitors["refuses"]
    cases = {
        "refused": case(SAY, refuses, REPLICA_GROUP="rg_1"),
        "admitted": case(SAY, monitors["admits"]),
        "warn": case(SAY, refuses, "warn"),
        "silent": case(TIMED, monitors["is silent"]),
        "yes": case(SAY, refuses, "yes"),
        "head:1": case(SAY, "head:1"),
        "thread": case(IN_A_THREAD, refuses),
        "script": case(IN_THE_SCRIPT, monitors["is told a group"], None),
        **{f"wish {wish}": case(SAY, monitors["is not asked"], wish) for wish in (None, "", "off")},
        **{f"away {url}": case(SAY, url) for url in AWAY},
    }
    return run_each(cases, module_dir)


def test_a_refused_rank_ends_before_training_and_says_why(ended, monitors):
    code, stdout, stderr, run_dir = ended["refused"]
    assert (code, stdout) == (75, "")
    assert stderr == f"{REFUSED}ending with status 75\n"
    assert {"host": ["node1"], "group": ["rg_1"]} in monitors["refuses"].questions
    assert not list(run_dir.iterdir())


def test_an_admitted_rank_attaches_without_a_word(ended):
    assert ended["admitted"][:3] == (0, "Reporter\n", "")


def test_warn_says_so_and_trains_on(ended):
    assert ended["warn"][:2] == (0, "Reporter\n")
    said = f"{REFUSED}it trains all the same (LIGHTKEEPER_ADMISSION=warn)"
    assert said in ended["warn"].stderr


@pytest.mark.parametrize("wish", [None, "", "off"])
def test_nobody_asks_unless_told_to(ended, monitors, wish):
    assert ended[f"wish {wish}"][:3] == (0, "Reporter\n", "")
    assert not [path for path in monitors["is not asked"].asked if "admission" in path]


@pytest.mark.parametrize("url", AWAY)
def test_a_monitor_that_is_away_admits(ended, url):
    assert ended[f"away {url}"].code == 0
    assert ended[f"away {url}"].stdout in ("Reporter\n", "NullReporter\n")


def test_a_monitor_that_does_not_answer_costs_two_seconds(ended):
    reporter, took_s = ended["silent"].stdout.split()
    assert (ended["silent"].code, reporter) == (0, "Reporter")
    assert 1.9 < float(took_s) < 15  # it does not answer for ever; more is the machine's


@pytest.mark.parametrize("name", SENSELESS)
def test_a_setting_that_makes_no_sense_is_a_warning_and_no_end(ended, name):
    assert ended[name].code == 0
    assert SENSELESS[name] in ended[name].stderr


def test_another_thread_than_main_is_not_ended(ended):
    assert ended["thread"][:2] == (0, "trains\n")
    assert "attached in another thread than main" in ended["thread"].stderr


def test_the_script_may_say_it_itself(ended, monitors):
    assert ended["script"].code == 75
    assert monitors["is told a group"].questions == [{"host": ["node1"], "group": ["rg_9"]}]


def test_a_script_that_is_only_wrapped_ends_with_the_same_status(tmp_path, run_dir, monitor):
    script = tmp_path / "train.py"
    script.write_text("print('trains')")
    done = run_python(
        "-m", "lightkeeper.worker_server", str(script), run_dir=run_dir,
        LIGHTKEEPER_ADMISSION="refuse", LIGHTKEEPER_MONITOR=monitor(REFUSAL).url,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (75, "")
    assert "ending with status 75" in done.stderr
