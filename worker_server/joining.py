"""A rank asks before it joins: `LIGHTKEEPER_ADMISSION=warn|refuse`.

The one place in this package that may end a rank, and only because somebody asked for it: on a
host in quarantine, where a launcher starts it all the same (it does not ask, or its scheduler was
not told), it would join the quorum again. Before training starts an end costs nothing; later nobody
is ended here.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping

from worker_server.admission import REFUSED_STATUS, Refused, ask, monitors_of, until
from worker_server.identity import group_of, host_of

WAIT_S = 2.0
"""For the answer. Longer delays every start by a dead monitor."""


def ask_to_join(environ: Mapping[str, str], warn: Callable[[str], None]) -> None:
    """Ask the monitor whether this rank may train here.

    Raises:
        SystemExit: status 75; it may not, and the environment says `refuse`.
    """
    wish = environ["LIGHTKEEPER_ADMISSION"]
    if wish not in ("warn", "refuse"):
        warn(f"LIGHTKEEPER_ADMISSION={wish!r} is none of off, warn, refuse: taken for off")
        return
    try:
        refused = _refused(environ)
    except Exception as exc:  # noqa: BLE001  training goes on without us
        warn(f"lightkeeper did not ask for admission: {exc!r}")
        return
    if refused is None:
        return
    said = (
        f"this rank is refused on {host_of(environ)} until {until(refused.until_s)}: "
        f"{refused.reason}"
    )
    if wish != "refuse":
        warn(f"lightkeeper: {said}; it trains all the same (LIGHTKEEPER_ADMISSION={wish})")
    elif threading.current_thread() is not threading.main_thread():
        warn(f"lightkeeper: {said}; it trains all the same: attached in another thread than main")
    else:
        _say(f"lightkeeper: {said}; ending with status {REFUSED_STATUS}")
        raise SystemExit(REFUSED_STATUS)


def _refused(environ: Mapping[str, str]) -> Refused | None:
    monitors = monitors_of(environ.get("LIGHTKEEPER_MONITOR", ""))
    if not monitors:
        return None
    answer = ask(list(monitors), host_of(environ), group_of(environ), WAIT_S)
    return answer if isinstance(answer, Refused) else None


def _say(text: str) -> None:
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # closed or None
        pass
