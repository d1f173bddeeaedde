"""Where things lie when nobody says."""

from __future__ import annotations

import os
from pathlib import Path


def evidence_beside(store: Path | None) -> Path:
    """Where bundles lie when nobody says. Of two monitors on one store only the active one writes;
    a store that is no file has none beside it, but each monitor has a state folder.
    """
    return state_folder() / "monitor-evidence" if store is None else beside(store, "-evidence")


def journal_beside(store: Path | None) -> Path:
    """Where the journal lies when nobody says."""
    return state_folder() / "monitor.journal" if store is None else beside(store, ".journal")


def beside(store: Path, ending: str) -> Path:
    """Of the store's name, in its folder."""
    return store.with_name(f"{store.stem}{ending}")


def state_folder() -> Path:
    """Of this user."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "lightkeeper"
