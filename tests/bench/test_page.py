"""The page at 10,000 ranks: first paint, what an update costs the browser, and the monitor.

Run with LIGHTKEEPER_BENCH=1 and `pytest -s`. The ranks are only written down (`tests.page.views`):
a real fleet of that size has no room here. Loopback, headless chromium, everything on one machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median

import pytest

from lightkeeper.monitor.model.verdict import RankHealth
from tests.page.browsing import Opened, chromium, live
from tests.page.serving import Stage
from tests.page.views import crowd
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.skipif(
        os.environ.get("LIGHTKEEPER_BENCH") != "1", reason="a benchmark: set LIGHTKEEPER_BENCH=1"
    ),
    pytest.mark.timeout(600),
]

GROUPS, WORLD = 1250, 8
SICK = {"rg_1.1": RankHealth.STALLED, "rg_700.3": RankHealth.DEAD}
TICKS = 15


def test_first_paint_and_updates_in_the_browser() -> None:
    monitor = Stage(crowd(GROUPS, WORLD))
    try:
        with chromium() as browser:
            pages = Opened(browser)
            _paints(pages, monitor)
            _updates(browser, pages, monitor)
            pages.close()
            assert not pages.errors
    finally:
        monitor.close()


def _paints(pages: Opened, monitor: Stage) -> None:
    first, whole = [], []
    for turn in range(6):
        monitor.show(crowd(GROUPS, WORLD, SICK, tick=200 + turn))  # nothing is made yet
        page = pages.open(monitor.url)
        live(page)
        paints = page.evaluate(
            "performance.getEntriesByType('paint').map((one) => [one.name, one.startTime])"
        )
        first.append(dict(paints)["first-contentful-paint"])
        whole.append(page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd"))
    loads = f"first load {first[0]:.0f} ms, then median {median(first[1:]):.0f} ms"
    print(f"\nfirst contentful paint: {loads}; loaded after {median(whole[1:]):.0f} ms")


def _updates(browser, pages: Opened, monitor: Stage) -> None:
    monitor.show(crowd(GROUPS, WORLD, tick=300))
    page = pages.open(monitor.url)
    live(page)
    page.evaluate(
        """() => {
          window.long = [];
          new PerformanceObserver((list) => {
            for (const one of list.getEntries()) window.long.push(one.duration);
          }).observe({ entryTypes: ["longtask"] });
        }"""
    )
    session = page.context.new_cdp_session(page)
    # seconds of CPU of the main thread: on a busy machine the clock says little
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    kinds = {
        "only the step moves": lambda turn: crowd(GROUPS, WORLD, tick=301 + turn),
        "two ranks fall sick, or recover": lambda turn: crowd(
            GROUPS, WORLD, SICK if turn % 2 == 0 else {}, tick=401 + turn
        ),
        "all 10,000 change": lambda turn: crowd(
            GROUPS, WORLD, tick=501 + turn,
            rest=RankHealth.WAITING if turn % 2 == 0 else RankHealth.HEALTHY,
        ),
    }  # fmt: skip
    for name, made in kinds.items():
        taken = [_one_update(page, session, monitor, made(turn)) for turn in range(10)]
        print(f"{name}: main thread median {median(taken):.0f} ms, most {max(taken):.0f} ms")
    longest = page.evaluate("Math.max(0, ...window.long)")
    print(f"longest task of all (longtask observer): {longest:.0f} ms")
    page.evaluate("window.gc?.()")
    heap = _metrics(session)["JSHeapUsedSize"] / 2**20
    print(f"JS heap {heap:.1f} MiB; renderer process {_renderer_mib(browser):.0f} MiB (PSS)")


def _one_update(page, session, monitor: Stage, view) -> float:
    """Milliseconds of CPU of the main thread: script, style, layout, paint."""
    before = _metrics(session)["TaskDuration"]
    monitor.show(view)
    step = f"{1000 + view.snapshot.tick:,}"
    wait_for(
        lambda: step in page.evaluate("document.getElementById('figures').textContent"),
        within_s=10, what="the update arrives",
    )  # fmt: skip
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return 1000 * (_metrics(session)["TaskDuration"] - before)


def _metrics(session) -> dict[str, float]:
    entries = session.send("Performance.getMetrics")["metrics"]
    return {entry["name"]: entry["value"] for entry in entries}


def _renderer_mib(browser) -> float:
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    sizes = []
    for process in processes:
        if process["type"] == "renderer":
            text = Path(f"/proc/{process['id']}/smaps_rollup").read_text()
            line = next(line for line in text.splitlines() if line.startswith("Pss:"))
            sizes.append(int(line.split()[1]) / 1024)
    return max(sizes)


# -- the monitor ---------------------------------------------------------------------------------

_CLIENT = """
import http.client, sys, time
number, asked = int(sys.argv[2]), 0
pages = [[http.client.HTTPConnection(sys.argv[1], timeout=60), ""] for _ in range(number)]
due_s = time.monotonic()
while True:
    for page in pages:
        page[0].request("GET", "/", headers={
            "Accept": "text/html", "Accept-Encoding": "gzip", "If-None-Match": page[1]})
        answer = page[0].getresponse()
        answer.read()
        page[1] = answer.headers["ETag"]
        due_s += 2.0 / number
        time.sleep(max(0.0, due_s - time.monotonic()))
"""


@contextmanager
def _open_pages(url: str, number: int) -> Iterator[None]:
    """Pages that poll, in a process of their own, so that its work is not counted here."""
    command = [sys.executable, "-c", _CLIENT, url.removeprefix("http://"), str(number)]
    with subprocess.Popen(command) if number else nullcontext() as client:
        try:
            yield
        finally:
            if client is not None:
                client.kill()


@pytest.mark.parametrize("pages", [0, 12, 200])
def test_what_open_pages_cost_the_monitor(pages: int) -> None:
    """A loop that ticks each second; its own work is to write down a view, in the same process."""
    monitor = Stage(crowd(GROUPS, WORLD))
    sick = ({}, SICK)
    try:
        with _open_pages(monitor.url, pages):
            worked, late, cpu_s = _loop(
                monitor, lambda n: crowd(GROUPS, WORLD, sick[n % 2], tick=n)
            )
    finally:
        monitor.close()
    print(
        f"\n{pages} pages: a tick's own work {1e3 * median(worked):.0f} ms (most "
        f"{1e3 * max(worked):.0f}), lateness median {1e3 * median(late):.1f} ms (most "
        f"{1e3 * max(late):.1f}), CPU of the process {1e3 * cpu_s:.0f} ms a tick"
    )


def _loop(monitor: Stage, view) -> tuple[list[float], list[float], float]:
    worked: list[float] = []
    late: list[float] = []
    pause = threading.Event()
    cpu_s, planned_s = time.process_time(), time.monotonic()
    for number in range(TICKS):
        began_s = time.monotonic()
        late.append(began_s - planned_s)
        monitor.show(view(100 + number))
        worked.append(time.monotonic() - began_s)
        planned_s += 1.0
        pause.wait(max(0.0, planned_s - time.monotonic()))
    return worked, late, (time.process_time() - cpu_s) / TICKS


_ASKING = """
import http.client, sys, time
paths, end_s, found = sys.argv[2:], time.monotonic() + 20, {}
while time.monotonic() < end_s:
    for path in paths:
        asking, began_s = http.client.HTTPConnection(sys.argv[1], timeout=60), time.monotonic()
        asking.request("GET", path)
        asking.getresponse().read()
        asking.close()
        found.setdefault(path, []).append(1e3 * (time.monotonic() - began_s))
        time.sleep(0.07)
for path, spent in found.items():
    spent.sort()
    print(f"{path}: median {spent[len(spent) // 2]:.0f} ms, worst {spent[-1]:.0f}, of {len(spent)}")
"""


def test_how_soon_page_and_api_answer_beside_a_busy_loop() -> None:
    """Each 2 s a new view and half a second of CPU of the one interpreter, as a tick takes it."""
    views = [crowd(GROUPS, WORLD, SICK if turn % 2 else {}, tick=100 + turn) for turn in range(12)]
    monitor, ended = Stage(views[0]), threading.Event()

    def loop() -> None:
        turn = 0
        while not ended.wait(1.5):
            began_s = time.thread_time()
            while time.thread_time() - began_s < 0.5:
                pass
            turn += 1
            monitor.show(views[turn % len(views)])

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        paths = ["/", "/v1/snapshot", "/v1/ranks", "/v1/groups", "/?by=host", "/groups/rg_1"]
        command = [sys.executable, "-c", _ASKING, monitor.url.removeprefix("http://"), *paths]
        print("\n" + subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    finally:
        ended.set()
        thread.join(timeout=10)
        monitor.close()
