"""What a rank under test does: `python rank_script.py ACTION`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

import lightkeeper


def steps(reporter, count=10**9, pause_s=0.005):
    for step in range(count):
        reporter.begin_step(step)
        with reporter.phase("forward"):
            time.sleep(pause_s)
        with reporter.phase("communication"):
            time.sleep(pause_s)
        reporter.end_step(step, committed=True, loss=2.5, tokens=512)


def main(action):  # noqa: C901  one branch an action
    reporter = lightkeeper.attach()
    steps(reporter, 3)
    reporter.begin_step(3)
    print("ready", flush=True)
    match action:
        case "steps":
            steps(reporter)
        case "hang":
            with reporter.phase("forward"):
                time.sleep(1000)
        case "gil":
            with reporter.phase("backward"):
                ctypes.PyDLL(None).sleep(1000)  # PyDLL keeps the GIL during the call
        case "deaf_to_term":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("deaf", flush=True)
            time.sleep(1000)
        case "die_at_once":
            os._exit(7)
        case "finish_at_once":
            reporter.close()
        case "raise":
            sys.stdin.read()
            raise ValueError("bad data")
        case "segfault":
            sys.stdin.read()
            ctypes.string_at(0)
        case "finish":
            while reporter.url is None:
                time.sleep(0.01)
            reporter.close()
        case "worker":
            child = os.fork()
            if not child:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                os.kill(os.getpid(), signal.SIGSTOP)  # as one that a file server holds
            time.sleep(1000)
        case "fork":
            child = os.fork()
            if not child:
                with reporter.phase("checkpoint"):
                    reporter.begin_step(99)
                    reporter.end_step(99, committed=True)
                os._exit(0)
            os.waitpid(child, 0)
            print("forked", flush=True)
            time.sleep(1000)


if __name__ == "__main__":
    main(sys.argv[1])
