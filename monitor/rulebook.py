"""The policy in force: read from its file, replaced by a reload, never by a bad file.

Theory of operation. A reload reads and checks the whole file first. If anything is wrong with it,
nothing changes and every problem is reported. Otherwise the loop adopts it between two ticks
(`take`). The command line overrides the file, as at the start. An option read only at the start
(`rules.needs_restart`) keeps its value, and is reported until a restart.
"""

from __future__ import annotations

import logging
import threading
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Final

from lightkeeper.monitor.decide.rules import (
    Effective,
    PolicyError,
    PolicyFile,
    needs_restart,
    policy_from,
)
from lightkeeper.monitor.model.config import ConfigError, KeeperConfig
from lightkeeper.worker_server.home import open_file

log = logging.getLogger(__package__)

FILE_MAX_BYTES: Final = 1 << 20
NO_FILE: Final = "no policy file is given: start the monitor with --policy FILE"


def read_policy(path: Path) -> PolicyFile:
    """What a policy file says.

    Raises:
        PolicyError: every problem, one a line, each with the file's name.
    """
    try:
        with open_file(path) as file:
            text = file.read(FILE_MAX_BYTES).decode()
        return policy_from(tomllib.loads(text))
    except OSError as exc:
        raise PolicyError((f"{path}: {exc.strerror or exc}",)) from exc
    except PolicyError as exc:
        raise PolicyError(tuple(f"{path}: {problem}" for problem in exc.problems)) from exc
    except (ValueError, RecursionError) as exc:  # no TOML, or no UTF-8
        raise PolicyError((f"{path}: no TOML: {' '.join(str(exc).split())}",)) from exc


def effective(
    path: Path | None,
    command_line: Mapping[str, Any],
    *,
    loaded_s: float,
    before: Effective | None = None,
) -> Effective:
    """Defaults, overridden by the file, overridden by the command line.

    Args:
        command_line: its options; None means not given.
        loaded_s: Unix time of now.
        before: the policy in force, in a reload.

    Raises:
        PolicyError: every problem of the file; a reload without a file.
        ConfigError: the command line alone is wrong.
    """
    if path is None and before is not None:
        raise PolicyError((NO_FILE,))
    command_line = {name: value for name, value in command_line.items() if value is not None}
    KeeperConfig.from_options(command_line)
    file = PolicyFile() if path is None else read_policy(path)
    try:
        config = KeeperConfig.from_options({**file.options, **command_line})
    except ConfigError as exc:
        raise PolicyError((f"{path}: together with the command line: {exc}",)) from exc
    waiting: dict[str, Any] = {}
    if before is not None:
        names = [option.name for option in fields(KeeperConfig) if needs_restart(option.name)]
        current = {name: getattr(before.config, name) for name in names}
        waiting = {n: getattr(config, n) for n in names if getattr(config, n) != current[n]}
        config = replace(config, **current)
    return Effective(
        config=config,
        policy=file.policy,
        path=path,
        loaded_s=loaded_s,
        number=1 if before is None else before.number + 1,
        said={**dict.fromkeys(file.options, "file"), **dict.fromkeys(command_line, "command line")},
        waiting=waiting,
    )


class Rulebook:
    """The policy of one monitor; the command line overrides the file. Safe from any thread."""

    def __init__(self, first: Effective, command_line: Mapping[str, Any] | None = None) -> None:
        self._command_line = dict(command_line or {})
        self._lock = threading.Lock()
        self.current = first
        """The newest policy, in force from the next tick at the latest."""
        self.applied = first
        """The policy that the loop has adopted."""
        self.problems: tuple[str, ...] = ()
        """Why the last reload changed nothing; empty when it did."""

    def reload(self, now_s: float, by: str = "a person") -> Effective:
        """Read the file again.

        Raises:
            PolicyError: why; nothing has changed.
        """
        with self._lock:
            before = self.current
            try:
                self.current = effective(
                    before.path, self._command_line, loaded_s=now_s, before=before
                )
                self.problems = ()
            except PolicyError as exc:
                self.problems = exc.problems
            current, problems = self.current, self.problems
        if problems:
            log.warning("the policy is not reloaded, by %s: %s", by, "; ".join(problems))
            raise PolicyError(problems)
        log.warning("%s has reloaded the policy %s (load %d)", by, current.path, current.number)
        return current

    def take(self) -> Effective | None:
        """The policy of a reload since the last call, if any."""
        with self._lock:
            fresh = None if self.current is self.applied else self.current
            self.applied = self.current
            return fresh

    def troubles(self) -> Iterator[str]:
        """What people should know about it, one line each."""
        with self._lock:
            current, problems = self.current, self.problems
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            yield f"the policy was not reloaded, the one before holds: {problems[0]}{more}"
        for name, value in sorted(current.waiting.items()):
            old = getattr(current.config, name)
            yield f"the policy says {name} = {value}: {old} holds until the monitor is restarted"


def standing(config: KeeperConfig) -> Rulebook:
    default = KeeperConfig()
    options, usual = asdict(config), asdict(default)
    changed = {name: value for name, value in options.items() if value != usual[name]}
    return Rulebook(Effective(config, said=dict.fromkeys(changed, "command line")), changed)
