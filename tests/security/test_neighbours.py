"""What a WorkerServer says of URLs that are not its own."""

from __future__ import annotations

from lightkeeper.monitor.act.http import Fetcher, Tokens
from lightkeeper.monitor.act.poller import Poller
from lightkeeper.worker_server.wire import HostEntry, HostReport, to_json
from tests.monitor.fakes import FakeFleet, page

ELSEWHERE = "http://127.0.0.1:1/rg_9.1"
ANOTHERS = "http://127.0.0.1:1/rg_5.0"


def test_what_a_neighbour_says_of_a_url_does_not_count_before_its_own_word(
    fleet: FakeFleet,
) -> None:
    liar, honest = fleet.add("rg_0", 0, world_size=2), fleet.add("rg_0", 1, world_size=2)
    claimed = fleet.add("rg_9", 0)
    far, guarded = fleet.add("rg_9", 1, host="node9"), fleet.add("rg_5", 0)
    lies = [(liar, liar.url), (claimed, honest.url), (far, ELSEWHERE), (guarded, ANOTHERS)]
    entries = tuple(HostEntry(rank.identity.rank, url, rank.report()) for rank, url in lies)
    fleet.host_page = lambda _: page(to_json(HostReport(liar.identity.host, entries)))
    fetcher = Fetcher(tokens=Tokens("secret", {"rg_5": "its own"}))
    try:
        sweep = Poller(fetcher).sweep(
            [liar.target()],
            deadline_s=5.0,
            unidentified=[honest.url, ELSEWHERE, ANOTHERS],
        )
    finally:
        fetcher.close()
    assert dict(sweep.identified) == {honest.url: honest.identity}
