"""`python -m tests.screens [OUT] [--fault KIND] [--docs]`."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tests.screens.fleet import ROOT, Demo, demo
from tests.screens.pictures import Album, terminal

_DOCS: Final = {
    "healthy-fleet-1440-light.png": "fleet-healthy.png",
    "late-fleet-1440-light.png": "fleet-late.png",
    "evicting-fleet-1440-light.png": "fleet-hung.png",
    "evicting-fleet-390-dark.png": "fleet-hung-phone.png",
    "recovered-fleet-1440-dark.png": "fleet-recovered.png",
    "ended-fleet-1440-light.png": "fleet-ended.png",
    "ended-fleet-390-light.png": "fleet-ended-phone.png",
    "hung-rank-1440-light.png": "rank-hung.png",
    "hung-status.svg": "status.svg",
    "hung-top.svg": "top.svg",
    "recovered-records-1440-light.png": "rank-flight-recorder.png",
    "recovered-incident-1440-light.png": "incident.png",
    "recovered-incident-stacks-1440-light.png": "incident-stacks.png",
}
"""Those that docs/ shows, and what they are called there."""
_SICK_GROUP, _SICK_RANK = "rg_1", "rg_1.1"


def main() -> int:
    """Run the fleet, take the pictures; 2 where there is no browser."""
    parser = argparse.ArgumentParser(prog="python -m tests.screens", description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=Path("/tmp/lightkeeper-screens"))
    parser.add_argument("--fault", default="gil", help="as of lightkeeper demo (default: gil)")
    parser.add_argument("--docs", action="store_true", help="copy those that docs/ shows there")
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
    if args.docs:
        for taken, shown in _DOCS.items():
            shutil.copyfile(args.out / taken, ROOT / "docs" / "images" / shown)
    print(f"pictures in {args.out}")
    return 0


def _pictures(fleet: Demo, album: Album, out: Path) -> None:
    host = fleet.get("/v1/groups")["groups"][1]["host"]
    album.open("fleet", "/")
    album.open("rank", f"/ranks/{_SICK_RANK}")
    for moment in ("healthy", "late"):
        album.shows("fleet", f"#pulse[data-state={_STATES[moment]}]", "", 240)
        album.keep(moment, "fleet")
    album.shows("fleet", "#pulse[data-state=stopped]", "", 120)
    album.keep("hung", "fleet", "rank")
    terminal(fleet.url, out, "hung")
    album.shows("fleet", "#next", "being evicted", 120)
    album.keep("evicting", "fleet", "rank")
    album.close("rank")
    album.open("hosts", "/?by=host")
    fleet.when("all is well again", _well, 180)
    terminal(fleet.url, out, "recovered")
    incident = fleet.get("/v1/incidents")["incidents"][0]["id"]
    for name, path in (
        ("group", f"/groups/{_SICK_GROUP}"), ("host", f"/hosts/{quote(host)}"),
        ("rank", f"/ranks/{_SICK_RANK}"), ("incidents", "/incidents"),
        ("stacks", f"/ranks/{_SICK_RANK}?show=stacks"),
        ("records", f"/ranks/{_SICK_RANK}?show=flight_recorder"),
        ("incident", f"/incidents/{quote(incident)}"),
    ):  # fmt: skip
        album.open(name, path)
        if name == "incident" and not album.has(name, "#stacks", 60):
            print("the stacks of the evidence did not come")
        album.keep("recovered", name)
        album.close(name)
    album.keep("recovered", "fleet", "hosts")
    fleet.kill_ranks()
    album.shows("fleet", "#pulse[data-state=ended]", "", 120)
    album.keep("ended", "fleet")
    album.draw()


_STATES: Final = {"healthy": "training", "late": "late"}


def _well(seen: dict[str, Any]) -> bool:
    """Every rank commits, in one quorum of both groups, and no incident is open."""
    whole = len(seen["ranks"]) == 4 and not seen["incidents"]
    return whole and all(
        rank["health"] == "healthy" and rank["participants"] == 2 for rank in seen["ranks"]
    )


if __name__ == "__main__":
    sys.exit(main())
