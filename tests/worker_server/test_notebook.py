"""Attaching in a notebook: a real kernel, cells that run again, interrupts, a restart."""

from __future__ import annotations

import pytest
import requests

from tests.worker_server.ranks import environment, eventually

jupyter_client = pytest.importorskip("jupyter_client")
pytest.importorskip("ipykernel")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore"),  # jupyter's own; ours are in the cells' output
]


class Notebook:
    """A kernel and its cells."""

    def __init__(self, run_dir, home):
        self.kernel = jupyter_client.KernelManager()
        self.kernel.start_kernel(
            env=environment(
                run_dir, LIGHTKEEPER_LINGER_S="20", HOME=str(home), IPYTHONDIR=str(home),
                PYDEVD_DISABLE_FILE_VALIDATION="1",
            ),
        )  # fmt: skip
        self.cells = self.kernel.blocking_client()
        self.cells.start_channels()
        self.cells.wait_for_ready(timeout=60)

    def run(self, code, *, when_it_says=None, then=None):
        """What the cell shows: its streams, its value, the name of its error."""
        shown = []

        def hook(message):
            content = message["content"]
            match message["header"]["msg_type"]:
                case "stream":
                    shown.append((content["name"], content["text"].strip()))
                    if when_it_says is not None and when_it_says in content["text"]:
                        then()
                case "execute_result":
                    shown.append(("value", content["data"]["text/plain"]))
                case "error":
                    shown.append(("error", content["ename"]))

        self.cells.execute_interactive(code, timeout=60, output_hook=hook)
        return shown

    def end(self):
        self.cells.stop_channels()
        self.kernel.shutdown_kernel(now=True)
        self.kernel.cleanup_resources()


@pytest.fixture
def notebook(run_dir, tmp_path):
    opened = Notebook(run_dir, tmp_path)
    yield opened
    opened.end()


ATTACH = "import lightkeeper, time\nreporter = lightkeeper.attach()"
URL = "while reporter.url is None: time.sleep(0.05)\nreporter.url"


def test_a_notebook_attaches_once_is_interrupted_and_restarted_and_shows_nothing_of_ours(notebook):
    assert notebook.run(ATTACH) == []
    assert notebook.run("first = reporter") == []
    assert notebook.run(ATTACH) == []
    assert notebook.run("reporter is first, type(reporter).__name__") == [
        ("value", "(True, 'Reporter')")
    ]
    [(_, quoted)] = notebook.run(URL)
    url = quoted.strip("'")
    assert notebook.run("for step in range(5): reporter.step(step, loss=1.5)") == []
    state = requests.get(url + "/v1/state", timeout=20).json()
    assert (state["step"]["step"], state["step"]["loss"]) == (4, 1.5)

    stuck = "with reporter.phase('forward'):\n    print('stuck', flush=True)\n    time.sleep(60)"
    shown = notebook.run(stuck, when_it_says="stuck", then=notebook.kernel.interrupt_kernel)
    assert shown == [("stdout", "stuck"), ("error", "KeyboardInterrupt")]
    assert notebook.run("reporter.step(5)") == []
    state = requests.get(url + "/v1/state", timeout=20).json()
    assert (state["process"]["alive"], state["step"]["step"]) == (True, 5)
    assert state["step"]["phase"] == "other"

    assert notebook.run("1 / 0") == [("error", "ZeroDivisionError")]
    assert notebook.run("time.sleep(1.5)") == []  # a beat
    assert requests.get(url + "/v1/last_words", timeout=20).json().get("exception") is None

    notebook.kernel.restart_kernel(now=True)
    notebook.cells.wait_for_ready(timeout=60)
    eventually(
        lambda: not requests.get(url + "/v1/state", timeout=20).json()["process"]["alive"],
        "the old sidecar sees that its kernel died",
    )
    assert notebook.run(ATTACH) == []
    [(_, quoted)] = notebook.run(URL)
    assert quoted.strip("'") != url
    new = requests.get(quoted.strip("'") + "/v1/state", timeout=20).json()
    assert (new["process"]["alive"], new.get("step")) == (True, None)
