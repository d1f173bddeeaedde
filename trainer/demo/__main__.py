"""`lightkeeper demo`."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.demo import scenario, view
from trainer.demo.fleet import Fleet, FleetError, start_fleet, wait_for_lighthouse
from trainer.demo.options import DemoOptions, parse
from trainer.demo.watch import MonitorAwayError, MonitorClient


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; gives the exit status."""
    options = parse(argv)
    run_dir = options.run_dir or Path(tempfile.mkdtemp(prefix="lightkeeper-demo-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        reports = _run(options, run_dir.resolve())
    except OSError as exc:
        print(f"lightkeeper demo: {exc.filename or run_dir}: {exc.strerror}", file=sys.stderr)
        return 1
    except (FleetError, MonitorAwayError) as exc:
        print(f"lightkeeper demo: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lightkeeper demo: interrupted, everything was stopped", file=sys.stderr)
        return 130
    _print_result(options, run_dir, reports)
    if not options.keeper:
        return 0
    return 1 if any(report.problems for report in reports) else 0


def _run(options: DemoOptions, run_dir: Path) -> list[scenario.FaultReport]:
    if options.keeper:
        return _run_fleet(options, run_dir, options.faults)
    # Nobody heals the fleet here: what one fault left behind would spoil the next.
    return [
        report
        for number, kind in enumerate(options.faults)
        for report in _run_fleet(options, run_dir / f"{number}-{kind}", (kind,))
    ]


def _run_fleet(
    options: DemoOptions, run_dir: Path, faults: tuple[str, ...]
) -> list[scenario.FaultReport]:
    reports: list[scenario.FaultReport] = []
    with start_fleet(options, run_dir) as fleet, view.View() as screen:
        screen.say(
            f"starting {options.groups} groups x {options.ranks_per_group} ranks, "
            f"{'with' if options.keeper else 'without'} keeper; logs in {run_dir}"
        )
        wait_for_lighthouse(fleet, scenario.START_LIMIT_S)
        client = fleet.monitor()
        with contextlib.closing(client):
            scenario.wait_until_whole(fleet, client, screen.show, scenario.START_LIMIT_S)
            screen.say(f"whole: every rank commits. Monitor: {fleet.monitor_url}")
            for number, kind in enumerate(faults):
                rank = _target(options, kind, number)
                screen.say(f"injecting {kind} into {rank}")
                report = scenario.run_fault(fleet, client, kind, rank, screen.show)
                reports.append(report)
                screen.console.print(view.timeline(report))
                if options.keeper and number + 1 < len(faults):
                    scenario.wait_until_whole(fleet, client, screen.show, scenario.START_LIMIT_S)
            if options.keep_running:
                _keep_running(fleet, client, screen)
    return reports


def _target(options: DemoOptions, kind: str, number: int) -> str:
    """Another group for each fault; the last rank of it, which hosts no TorchFT manager."""
    del kind
    return f"rg_{(number + 1) % options.groups}.{options.ranks_per_group - 1}"


def _keep_running(fleet: Fleet, client: MonitorClient, screen: view.View) -> None:
    snapshot = client.snapshot()
    rank = snapshot["ranks"][0]
    screen.say(f"everything stays up until Ctrl-C; open {fleet.monitor_url}/ or try:")
    for line in (
        f"curl {fleet.monitor_url}/v1/groups",
        f"curl {fleet.monitor_url}/v1/incidents",
        f"curl {rank['url']}/",
        f"curl {rank['url']}/v1/state",
        f"curl {rank['url']}/v1/flight_recorder",
        f"curl {rank['url']}/v1/stacks",
        (
            f'curl -X POST -H "Authorization: Bearer $(cat {fleet.token_file})" '
            f'-d \'{{"reason": "trying it"}}\' {rank["url"]}/v1/evict'
        ),
    ):
        screen.console.print(f"  {line}", soft_wrap=True, markup=False)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            fleet.check_alive()
            time.sleep(1)


def _print_result(
    options: DemoOptions,
    run_dir: Path,
    reports: list[scenario.FaultReport],
) -> None:
    if not options.json:
        view.console().print(view.summary(reports))
        return
    result: dict[str, Any] = {
        "schema": 1,
        "groups": options.groups,
        "ranks_per_group": options.ranks_per_group,
        "keeper": options.keeper,
        "timeouts": "short" if options.short_timeouts else "default",
        "run_dir": str(run_dir),
        "ok": not any(report.problems for report in reports),
        "faults": [report.to_json() for report in reports],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    sys.exit(main())
