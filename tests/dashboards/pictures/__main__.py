"""`make dashboard-pictures`: every dashboard over simulated fleets, in both themes.

A world of four jobs (`tests.dashboards.scenes`) is made once and kept, as are Grafana's libraries.
Needs npm (the first time), chromium, prometheus and promtool.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lightkeeper.dashboards.committed import read_boards
from tests.dashboards.pictures.answers import Asked, Chosen
from tests.dashboards.scenes import EPOCH_S, MOMENTS, jobs, make_world, serving
from tests.prometheus.server import Prometheus

_HERE: Final = Path(__file__).parent
_ROOT: Final = _HERE.parents[2]
_BUILD: Final = _ROOT / "build" / "dashboard-pictures"
_NEEDS: Final = {
    "npm": "apt-get install npm", "chromium": "apt-get install chromium",
    "prometheus": "apt-get install prometheus", "promtool": "apt-get install prometheus",
}  # fmt: skip
_HTML: Final = """\
<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="/bundle.css"><div id="root"></div>
<script>window.process = {env: {NODE_ENV: "production"}}; window.grafanaBootData = {settings: {}};
window.__grafana_public_path__ = "/public/";</script>
<script src="/bundle.js"></script>
"""
_SIZE: Final = {"width": 1920, "height": 1080}
_PATIENCE_MS: Final = 180_000
"""For a browser on a busy machine."""


@dataclass(frozen=True)
class Shot:
    """One picture."""

    board: str
    moment: str
    job: str
    range_s: int = 1800

    @property
    def variables(self) -> dict[str, str]:
        (job,) = (job for job in jobs(large=False) if job.name == self.job)
        return {"job": self.job, **job.place}

    @property
    def name(self) -> str:
        return f"{self.board}-{self.job}-{self.moment}"


def shots() -> Iterator[Shot]:
    for moment in ("healthy", "evicting", "after", "end"):
        yield Shot("fleet", moment, "vision")
    for moment in ("held", "resumed", "end"):
        yield Shot("fleet", moment, "pretrain")
    yield Shot("fleet", "healthy", "nightly")
    yield Shot("fleet", "end", "nightly")
    yield Shot("fleet", "end", "gone")
    for board in ("groups", "stragglers", "incidents", "keeper", "rank"):
        yield Shot(board, "end", "vision")
        yield Shot(board, "held", "pretrain")
        yield Shot(board, "end", "nightly")
    for board in ("groups", "rank"):
        yield Shot(board, "evicting", "vision")
    yield Shot("stragglers", "straggler", "vision")


def bundle() -> None:
    """Fetch Grafana's libraries, if they are not here, and make one script of them and our page."""
    _BUILD.mkdir(parents=True, exist_ok=True)
    wanted, have = _HERE / "package.json", _BUILD / "package.json"
    if not have.exists() or have.read_text() != wanted.read_text():
        print("npm install: Grafana's libraries, 460 MB, once", flush=True)
        install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
        shutil.copy(wanted, have)
        try:
            subprocess.run(install, cwd=_BUILD, check=True)
        except BaseException:
            have.unlink()
            raise
    subprocess.run(
        ["node_modules/.bin/esbuild", str(_HERE / "page.jsx"), "--bundle", "--outfile=bundle.js",
         "--format=iife", "--jsx=automatic", "--minify", "--log-level=error",
         "--define:global=window", '--define:process.env.NODE_ENV="production"',
         *(f"--loader:.{kind}=dataurl" for kind in ("svg", "png", "woff2", "woff", "ttf"))],
        cwd=_BUILD, check=True, env={**os.environ, "NODE_PATH": str(_BUILD / "node_modules")},
    )  # fmt: skip


class Studio:
    """A browser page that draws what it is given; it reaches no network."""

    def __init__(self, browser: Any, out: Path) -> None:
        self._out = out
        self._page = browser.new_page(viewport=_SIZE)
        self._page.route("**/*", self._serve)
        self._page.goto("http://pictures/", timeout=_PATIENCE_MS)
        self._page.wait_for_function("() => Boolean(window.draw)", timeout=_PATIENCE_MS)

    @staticmethod
    def _serve(route: Any) -> None:
        path = route.request.url.partition("//pictures/")[2]
        files = [_BUILD / path, _BUILD / "node_modules/@grafana/ui/dist" / path]
        file = next((file for file in files if file.is_file()), None)
        if not path:
            route.fulfill(body=_HTML, content_type="text/html")
        elif file is not None:
            route.fulfill(path=file)
        else:
            route.fulfill(status=404)

    def draw(self, name: str, everything: dict[str, Any], theme: str) -> list[str]:
        """Write the picture; what went wrong in the page."""
        self._page.clock.set_fixed_time(everything["to"])
        spots = [panel["gridPos"] for panel in everything["board"]["panels"]]
        high = 38 * max(spot["y"] + spot["h"] for spot in spots) + 110
        self._page.set_viewport_size({**_SIZE, "height": max(high, _SIZE["height"])})
        drawing = "([asked, mode]) => window.draw(asked, mode)"
        problems: list[str] = self._page.evaluate(drawing, [everything, theme])
        self._page.screenshot(
            path=self._out / f"{name}-{theme}.png", full_page=True, timeout=_PATIENCE_MS
        )
        return problems


def draw(prom: Prometheus, wanted: list[Shot], themes: list[str], out: Path) -> int:
    """Number of pictures in which something went wrong."""
    from playwright.sync_api import sync_playwright

    boards = {board["uid"].removeprefix("lightkeeper-"): board for board in read_boards()}
    wrong = 0
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        studio = Studio(browser, out)
        for shot in wanted:
            chosen = Chosen(EPOCH_S + MOMENTS[shot.moment], shot.range_s, shot.variables)
            everything = Asked(boards[shot.board], prom, chosen).everything()
            problems = [
                line for theme in themes for line in studio.draw(shot.name, everything, theme)
            ]
            wrong += bool(problems)
            print(shot.name, *problems, sep="\n    ", flush=True)
        browser.close()
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="make dashboard-pictures", description=__doc__)
    parser.add_argument("--out", type=Path, default=_BUILD / "pictures")
    parser.add_argument("--small", action="store_true", help="12 ranks instead of 512")
    parser.add_argument("--again", action="store_true", help="make the world again")
    parser.add_argument("--only", default="", metavar="TEXT", help="pictures with this in the name")
    parser.add_argument("--theme", action="append", choices=["dark", "light"])
    parser.add_argument("--docs", action="store_true", help="copy the one that docs/ shows there")
    args = parser.parse_args()
    missing = {name: how for name, how in _NEEDS.items() if shutil.which(name) is None}
    if missing:
        for name, how in missing.items():
            print(f"{name} is not installed: {how}", file=sys.stderr)
        return 2
    bundle()
    world = _BUILD / ("world-small" if args.small else "world")
    if args.again:
        shutil.rmtree(world, ignore_errors=True)
    if not world.exists():
        unfinished = world.with_name(world.name + ".part")
        shutil.rmtree(unfinished, ignore_errors=True)
        print("simulating 40 minutes of four jobs, once", flush=True)
        make_world(unfinished, jobs(large=not args.small))
        unfinished.rename(world)
    args.out.mkdir(parents=True, exist_ok=True)
    wanted = [shot for shot in shots() if args.only in shot.name]
    with serving(world) as prom:
        wrong = draw(prom, wanted, args.theme or ["dark", "light"], args.out)
    if args.docs:
        shutil.copyfile(
            args.out / "fleet-pretrain-held-dark.png", _ROOT / "docs/images/grafana-fleet.png"
        )
    return min(1, wrong)


if __name__ == "__main__":
    sys.exit(main())
