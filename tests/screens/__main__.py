"""`python -m tests.screens [OUT] [--fault KIND]`."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.screens.fleet import Demo, demo
from tests.screens.pictures import Album, terminal

_SICK_GROUP, _SICK_RANK = "rg_1", "rg_1.1"


def main() -> int:
    """Run the fleet, take the pictures; 2 where there is no browser."""
    parser = argparse.ArgumentParser(prog="python -m tests.screens", description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=Path("/tmp/lightkeeper-screens"))
    parser.add_argument("--fault", default="gil", help="as of lightkeeper demo (default: gil)")
    args = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.stderr.write("chromium is not installed: apt-get install chromium\n")
        return 2
    from playwright.sync_api import sync_playwright

    args.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver, demo(args.fault) as fleet:
        browser = driver.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        try:
            _pictures(fleet, Album(browser, fleet.url, args.out), args.out)
        finally:
            browser.close()
    print(f"pictures in {args.out}")
    return 0


def _pictures(fleet: Demo, album: Album, out: Path) -> None:
    host = fleet.get("/v1/groups")["groups"][1]["host"]
    album.open("fleet", "/")
    album.open("group", f"/groups/{_SICK_GROUP}")
    album.open("rank", f"/ranks/{_SICK_RANK}")
    fleet.when("the rank stands still", lambda seen: _health(seen) == "stalled", 180)
    terminal(fleet.url, out, "hung")
    album.take("hung", "fleet", "group", "rank")
    fleet.when("its group is put out", _evicting, 120)
    album.take("evicting", "fleet", "group", "rank")
    album.close("group", "rank")
    album.open("hosts", "/?by=host")
    fleet.when("all is well again", _well, 180)
    terminal(fleet.url, out, "recovered")
    incident = fleet.get("/v1/incidents")["incidents"][0]["id"]
    for name, path in (
        ("group", f"/groups/{_SICK_GROUP}"), ("host", f"/hosts/{quote(host)}"),
        ("rank", f"/ranks/{_SICK_RANK}"), ("incidents", "/incidents"),
        ("incident", f"/incidents/{quote(incident)}"),
    ):  # fmt: skip
        album.open(name, path)
        album.take("recovered", name)
        album.close(name)
    album.take("recovered", "fleet", "hosts")


def _health(seen: dict[str, Any]) -> str | None:
    return next((one["health"] for one in seen["ranks"] if one["rank"] == _SICK_RANK), None)


def _evicting(seen: dict[str, Any]) -> bool:
    return any(one["eviction"] for one in seen["groups"]) or any(
        one["state"] == "evicting" for one in seen["incidents"]
    )


def _well(seen: dict[str, Any]) -> bool:
    """Every rank commits, in one quorum of both groups, and no incident is open."""
    whole = len(seen["ranks"]) == 4 and not seen["incidents"]
    return whole and all(
        one["health"] == "healthy" and one["participants"] == 2 for one in seen["ranks"]
    )


if __name__ == "__main__":
    sys.exit(main())
