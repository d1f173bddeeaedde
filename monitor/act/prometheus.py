"""What a Prometheus says of hosts: a table of instant queries, their answers read with care."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from math import isfinite
from typing import Final
from urllib.parse import urlencode

from msgspec import DecodeError, Struct
from msgspec.json import Decoder

from lightkeeper.monitor.act.http import Fetcher, FetchError, Question
from lightkeeper.monitor.act.schedulers.base import Deadline, NotDone
from lightkeeper.monitor.act.testimonies import QUERIES, Said, worded
from lightkeeper.monitor.model.names import Host, host_and_port, without_secrets
from lightkeeper.monitor.model.queries import PrometheusQuery

ANSWER_MAX_BYTES: Final = 8 * 1024 * 1024
_SERIES_MOST: Final = 10_000
"""In one answer; eight GPUs of a thousand hosts fit."""
_LONGEST_S: Final = 15 * 86_400.0
"""Prometheus keeps 15 days by default."""
_LABELS: Final = ("Hostname", "hostname", "nodename", "node", "kubernetes_node", "host", "instance")
_NODENAMES: Final = PrometheusQuery("nodename", "node_uname_info")
"""node-exporter's: `instance` -> `nodename`; its other series have only `instance`."""


class _Series(Struct):
    metric: dict[str, str]
    value: tuple[float, str]


class _Result(Struct):
    result: list[_Series]


class _Answer(Struct):
    data: _Result


_DECODER: Final = Decoder(_Answer)


class _RefusedError(NotDone):
    """Prometheus does not take this query, or its answer is unusable; another may work."""


class Prometheus:
    """Asks one Prometheus. Close its fetcher when done."""

    name: Final = "Prometheus"
    every_s: Final = 15.0

    def __init__(
        self, url: str, fetcher: Fetcher, queries: Callable[[], Sequence[PrometheusQuery]],
        age_s: Callable[[], float], authorization: str | None = None,
    ) -> None:  # fmt: skip
        """`queries`: those of the policy; `age_s`: of the run, in seconds."""
        self._url = url.rstrip("/")
        self._fetcher = fetcher
        self._queries = queries
        self._age_s = age_s
        self._headers = {} if authorization is None else {"Authorization": authorization}

    def testimonies(self, _hosts: Collection[Host], timeout_s: float) -> Iterator[Said]:
        """As `Scheduler.testimonies`; a bad query costs only itself."""
        deadline, nodenames, refused = Deadline(timeout_s), dict[str, str](), list[str]()
        own = self._queries()
        codes = {query.code for query in own}
        shipped = (query for query in QUERIES if query.code not in codes)
        for query in (_NODENAMES, *shipped, *(query for query in own if query.query)):
            try:
                answer = self._ask(query, deadline)
            except _RefusedError as exc:
                refused.append(f"{query.code}: {exc}")
                continue
            for series in answer:
                if query is _NODENAMES:
                    nodenames[series.metric.get("instance", "")] = series.metric.get("nodename", "")
                elif (said := _said(query, series, nodenames)) is not None:
                    yield said
        if refused:
            raise NotDone("; ".join(refused))

    def _ask(self, query: PrometheusQuery, deadline: Deadline) -> Sequence[_Series]:
        """The series of a query's answer.

        Raises:
            _RefusedError: another query may work.
            NotDone: Prometheus does not answer.
        """
        age_s = min(max(self._age_s(), 1.0), _LONGEST_S)
        text = query.query.replace("$run", f"{age_s:.0f}s")
        text = text.replace("$window", f"{min(age_s, 3600.0):.0f}s")
        url = f"{self._url}/api/v1/query?{urlencode({'query': text})}"
        question = Question(url, deadline.left_s(), ANSWER_MAX_BYTES, headers=self._headers)
        try:
            answer = self._fetcher.ask(question)
        except FetchError as exc:
            failed = _RefusedError if exc.too_large else NotDone
            raise failed(without_secrets(url, str(exc))) from exc
        if answer.status != 200:
            raise (_RefusedError if answer.status in (400, 422) else NotDone)(answer.summary)
        try:
            return _DECODER.decode(answer.body).data.result[:_SERIES_MOST]
        except (DecodeError, RecursionError, UnicodeDecodeError) as exc:
            raise _RefusedError(f"no answer of Prometheus: {exc}") from exc


def _said(query: PrometheusQuery, series: _Series, nodenames: dict[str, str]) -> Said | None:
    """What a series says, with the names that may be the host's; None: its value is no number."""
    labels = series.metric
    try:
        value = float(series.value[1])
    except ValueError:
        return None
    if not isfinite(value):
        return None
    names = [labels.get(label, "") for label in ((query.host,) if query.host else _LABELS)]
    names = [(host_and_port(name) or (name,))[0] for name in names if name]
    words = {**labels, "code": query.code, "value": f"{value:.3g}" if value % 1 else f"{value:.0f}"}
    said = worded(Prometheus.name, query, words, 0.0)
    return (*names, nodenames.get(labels.get("instance", ""), "")), said
