"""How a command is declared, and how it fails. Click does the rest.

A command is a function. Its docstring is its help, its options are its arguments. Options that
together mean one thing come as one value (`gathered`): a monitor, the sinks. A command
returns its exit status (None: done), or raises CommandError: one line on standard error.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2


class CommandError(click.ClickException):
    """One line for a person, and the exit status."""

    def __init__(self, message: str, status: int = USAGE) -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = status  # type: ignore[misc] # one class for all of ours


class HelpPage(click.Command):
    """Its help is the unchanged docstring, then the options by section."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Not wrapped: examples keep their lines."""
        formatter.write(f"\n{inspect.cleandoc(self.help or '')}\n")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Those without a section first."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            record = None if isinstance(param, click.Argument) else param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(param, "section", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class Option(click.Option):
    def __init__(self, *words: Any, section: str = "Options", **more: Any) -> None:
        more["show_envvar"] = True
        super().__init__(*words, **more)
        self.section = section


class Within(click.ParamType[float]):
    """A number from `low` to `high`, or an integer (`kind`)."""

    name = "number"

    def __init__(self, low: float, high: float, kind: type[float] = float) -> None:
        self._low, self._high, self._kind = low, high, kind

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            number = self._kind(value)
        except ValueError:
            number = math.nan
        if not self._low <= number <= self._high:
            option = param.opts[0] if param is not None else "it"
            raise CommandError(f"{option} is {value}, expected {self._low:g} to {self._high:g}")
        return number


command: Final = functools.partial(click.command, cls=HelpPage)
option: Final = functools.partial(click.option, cls=Option)
FILE: Final = click.Path(path_type=Path, readable=False)  # its reader reports errors


def gathered(name: str, make: Callable[..., Any], *options: Callable[[F], F]) -> Callable[[F], F]:
    """Pass `options` to a command as one argument, made by `make` from its parameters."""
    taken = tuple(inspect.signature(make).parameters)

    def decorate(called: F) -> F:
        @functools.wraps(called)
        def call(**arguments: Any) -> Any:
            value = make(
                **{
                    parameter: arguments.pop(parameter)
                    for parameter in taken
                    if parameter in arguments
                }
            )
            return called(**arguments, **{name: value})

        for add in reversed(options):
            call = add(call)
        return call  # type: ignore[return-value]

    return decorate


as_json: Final = option(
    "--format", "as_json", type=click.Choice(("text", "table", "json")), default="text",
    callback=lambda _ctx, _param, value: value == "json",
    help="text for people (table is the same), json for programs",
)  # fmt: skip
