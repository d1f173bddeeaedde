"""Which exceptions are an end: `sys.last_value` alone does not tell."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.rank.page.reader import PageReader
from tests.worker_server.ranks import ROOT

WATCHED = """
import atexit, sys, threading
from pathlib import Path
from tests.worker_server.pages import identity
from lightkeeper.worker_server.rank import last_words
from lightkeeper.worker_server.rank.page.writer import PageWriter
page = PageWriter.create(Path(sys.argv[1]), identity(), 1)
last_words.install(page, Path(sys.argv[1] + ".crash"))
atexit.register(last_words.note_uncaught)
def beat():
    thread = threading.Thread(target=last_words.note_uncaught)
    thread.start()
    thread.join()
def interactive(code):
    "As IPython and code.InteractiveConsole have it."
    sys.ps1 = "In : "
    try:
        exec(compile(code, "<cell>", "exec"), {})
    except Exception as exc:
        sys.last_value = exc
"""
ENDS = {
    "a script raises": "1 / 0",
    "the beat sees it first": (
        "def hook(*_):\n    beat()\n    sys.last_value = None\nsys.excepthook = hook\n1 / 0"
    ),
    "a script that was a notebook for a while": "interactive('[][1]')\nbeat()\n1 / 0",
    "an exception that is false": (
        "class Empty(ZeroDivisionError):\n    __len__ = lambda self: 0\nraise Empty"
    ),
    "a thread that fails after it": (
        "def hook(*_):\n"
        "    beat()\n"
        "    t = threading.Thread(target=lambda: {}['consequence'])\n"
        "    t.start()\n"
        "    t.join()\n"
        "sys.excepthook = hook\n"
        "1 / 0"
    ),
}
NO_ENDS = {
    "a cell fails and the kernel ends long after": "interactive('1 / 0')\nbeat()",
    "a cell fails and the kernel ends at once": "interactive('1 / 0')",
    "C code or a library says what failed last": (
        "try:\n    1 / 0\nexcept ZeroDivisionError as exc:\n    sys.last_value = exc\nbeat()"
    ),
}


def note_of(tmp_path, code, *flags, stdin=None):
    script, page = tmp_path / "script.py", tmp_path / "a.page"
    script.write_text(WATCHED + code + "\n")
    command = [sys.executable, *flags, str(script), str(page)]
    subprocess.run(
        command, input=stdin, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    note = PageReader(page).note(layout.NOTE_EXCEPTION, time.monotonic_ns())
    return note[0] if note else None


@pytest.mark.parametrize("code", ENDS.values(), ids=ENDS)
def test_what_ends_the_main_thread_is_noted(tmp_path, code):
    who, summary, *_ = note_of(tmp_path, code).splitlines()
    assert who == "the main thread"
    assert summary.startswith(("ZeroDivisionError", "Empty"))


@pytest.mark.parametrize("code", NO_ENDS.values(), ids=NO_ENDS)
def test_what_the_process_outlives_is_not(tmp_path, code):
    assert note_of(tmp_path, code) is None


def test_an_interactive_python_outlives_all_its_errors(tmp_path):
    assert note_of(tmp_path, "1 / 0", "-i", stdin="beat()\n[][1]\n") is None
