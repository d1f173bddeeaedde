"""Runs modules of these tests as programs of their own, forked after one import of torch (2 s).

A line of stdin an order: `[MODULE, FOLDER, WORDS...]`. Answers with the exit code; what was printed
is in FOLDER/MODULE.1 and MODULE.2.
"""

import json
import os
import runpy
import signal
import sys

import torch.distributed  # noqa: F401

from tests import forks


def life(module, folder, *words):
    signal.alarm(90)
    for stream in (1, 2):
        os.dup2(os.open(f"{folder}/{module}.{stream}", os.O_WRONLY | os.O_CREAT), stream)
    sys.argv = [module, folder, *words]
    try:
        runpy.run_module(f"tests.worker_server.{module}", run_name="__main__")
    except SystemExit as ended:
        if ended.code:
            raise
    finally:
        sys.stdout.flush()


if __name__ == "__main__":
    forks.light()
    for line in sys.stdin:
        _, status = os.waitpid(forks.child(life, *json.loads(line)), 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
