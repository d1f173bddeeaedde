"""When a bug of these scripts strikes, and whom; what it does stands where people write it.

BUG         "lock@1.0;dead_disk@1.0,2.0*always": name, ranks (GROUP.RANK; without groups job.RANK), how
            often: once; *2: once each in two processes; ~3: three times in one, 8 s apart; *always;
            *start: once, at the first chance, not armed
BUG_GO      a file; it holds how many of them may strike by now, and perhaps the only pid
BUG_STRUCK  a file; a line for each that has
"""

import json
import os
import time

BEGAN = time.monotonic()
GRACE_S = 5.0
ME = f"{os.environ.get('REPLICA_GROUP_ID', 'job')}.{os.environ.get('RANK', '?')}"


def _entries():
    for index, text in enumerate(os.environ.get("BUG", "").split(";")):
        name, _, ranks = text.strip().partition("@")
        ranks, _, repeats = ranks.partition("~")
        ranks, _, times = ranks.partition("*")
        if ME in ranks.split(","):
            yield (
                index,
                name,
                {"always": float("inf"), "start": 1}.get(times) or int(times or 1),
                int(repeats or 1),
                times == "start",
            )


MINE = list(_entries())
DONE = {}
APART_S = 8.0


def now(name):
    """Whether it is time for this bug, here; then it is written down."""
    for index, mine, times, repeats, at_once in MINE:
        if mine == name and (at_once or _may(index)) and _count(name, times, repeats):
            return True
    return False


def _may(index):
    if time.monotonic() - BEGAN < GRACE_S:
        return False
    try:
        with open(os.environ["BUG_GO"]) as file:
            armed, _, pid = file.read().partition(" ")
    except (OSError, KeyError):
        return False
    return index < int(armed or 0) and int(pid or os.getpid()) in (os.getpid(), os.getppid())


def _count(name, times, repeats):
    key = (name, os.getpid())
    mine = DONE.setdefault(key, [])
    if times == float("inf"):
        if not mine:
            mine.append(time.monotonic())
            _note(name)
        return True
    if len(mine) >= repeats or (mine and time.monotonic() - mine[-1] < APART_S):
        return False
    if not mine and _lives(name) >= times:
        return False
    mine.append(time.monotonic())
    _note(name)
    return True


def _lives(name):
    """Processes of this rank that it has struck."""
    try:
        with open(os.environ["BUG_STRUCK"]) as file:
            struck = [json.loads(line) for line in file]
    except OSError:
        return 0
    return len({line["pid"] for line in struck if line["bug"] == name and line["rank"] == ME})


def _note(name):
    line = json.dumps({"bug": name, "rank": ME, "pid": os.getpid(), "time": time.time()})
    with open(os.environ["BUG_STRUCK"], "a") as file:
        file.write(line + "\n")
