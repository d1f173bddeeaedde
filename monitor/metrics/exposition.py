"""`/metrics` as text. Large families are written by hand: the client library takes 4 us a series.

A scrape shares the interpreter with the tick; at 10,000 ranks the library would hold it for 0.1 s.
What `Bulk` writes is what the library would, which a test compares line by line.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

Row = tuple[tuple[str, ...], float]
"""Values of the labels, in order, and the value."""

_BACKSLASH: Final = "\\"


class Bulk(Metric):
    """A gauge or a counter of many series, which are `Sample`s only for whoever asks for them."""

    def __init__(
        self, name: str, text: str, kind: str, labels: tuple[str, ...], rows: list[Row]
    ) -> None:
        self._names, self._rows = labels, rows
        self._text: str | None = None
        super().__init__(name.removesuffix("_total") if kind == "counter" else name, text, kind)
        self._sample = name

    @property
    def samples(self) -> list[Sample]:
        """As the library has them."""
        return [
            Sample(self._sample, dict(zip(self._names, values, strict=True)), float(value))
            for values, value in self._rows
        ]

    @samples.setter
    def samples(self, _: list[Sample]) -> None:
        """The library's own constructor sets an empty list."""

    @property
    def text(self) -> str:
        """A line for each series; made once."""
        if self._text is None:
            self._text = "".join(self._lines())
        return self._text

    def _lines(self) -> Iterator[str]:
        order = sorted(range(len(self._names)), key=self._names.__getitem__)
        for values, value in self._rows:
            labels = ",".join([f'{self._names[n]}="{escaped(values[n])}"' for n in order])
            number = repr(float(value)) if isfinite(value) else floatToGoString(value)  # type: ignore[no-untyped-call]
            yield f"{self._sample}{{{labels}}} {number}\n"


def escaped(text: str) -> str:
    """A label's value."""
    if _BACKSLASH in text or '"' in text or "\n" in text:
        return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return text


class _Rest:
    """What the library writes."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """As a registry."""
        return iter(self._families)


def page(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The page in the format that a scraper asks for, and its content type."""
    encode, content_type = choose_encoder(accept)
    total = "" if content_type.startswith("application/openmetrics-text") else "_total"
    large: list[str] = []
    rest: list[Metric] = []
    for family in registry.collect():
        if not isinstance(family, Bulk):
            rest.append(family)
            continue
        name = f"{family.name}{total}" if family.type == "counter" else family.name
        large.append(f"# HELP {name} {family.documentation}\n# TYPE {name} {family.type}\n")
        large.append(family.text)
    return "".join(large).encode() + encode(_Rest(rest)), content_type
