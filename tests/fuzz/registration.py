"""Whatever is sent to `/v1/register` and `/v1/admission`, it changes what its token is for.

A game is a monitor's application in memory, with a
token, tokens of groups, or none, and some hundred requests: registrations as honest ranks send
them, such in which values are replaced, other tokens, headers, addresses and bytes, and everything
that a change needs a token for. A finding is: an answer of 500, or one that is no JSON; a request
without the right token that changed anything, or with another group's; a name, URL or number in the
table that no rank may have; an answer that took long; a table that has forgotten what it counts, or
is beyond its bounds; an honest rank that cannot register any more.
"""

from __future__ import annotations

import gc
import json
import random
import re
import time
import tracemalloc
from collections import Counter
from copy import deepcopy
from typing import Any, Final
from unittest import mock
from urllib.parse import quote

from prometheus_client import CollectorRegistry, generate_latest

from lightkeeper.monitor.act import targets as registry
from lightkeeper.monitor.act.http import Fetcher, Tokens
from lightkeeper.monitor.act.targets import Registry, target_from_json
from lightkeeper.monitor.metric import Filled
from lightkeeper.monitor.model.eviction import QuarantineEntry
from lightkeeper.monitor.show import metrics as page_metrics
from lightkeeper.monitor.show.web.server import create_app, is_here
from lightkeeper.worker_server.wire import Process, StateReport
from tests.fuzz.games import NUMBERS, ODD, RAW, TEXTS
from tests.monitor.api import app_context
from tests.monitor.doubles import HandClock, Memory

SLOW_S: Final = 0.5
"""Of CPU: what one answer may take."""
GROWN_MOST: Final = 8 << 20
"""Bytes that a game may leave behind: it has a dozen ranks."""
RANKS_MOST: Final = 12
NEW_A_MINUTE: Final = 4
OWN_PORT: Final = 8470
IN_PATHS: Final = tuple(text[:2000] for text in TEXTS)
"""The server takes 16 KiB of header."""
TOKENS: Final = {"rg_0": "zero", "rg_1": "first", "0": "zero", "rg.2": "second"}
GROUPS: Final = ("rg_0", "rg_1", "rg.2", "0", "job", "rg_9", "a", "\u00e9", "x" * 128, "rg_0.0")
FORBIDDEN: Final = (
    "169.254.169.254", "[::ffff:169.254.0.1]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]",
    "[fe80::1]", "[ff02::1]", "[64:ff9b::224.0.0.1]", "0.0.0.0", "224.0.0.1", "2130706433",
    "0x7f.1", "127.1", "metadata", "metadata.google.internal.", "[fd00:ec2::254]",
    "100.100.100.200", "[::]", "[64:ff9b::168.63.129.16]", "[2002:6464:64c8::9]", "[]", "[1",
    "h\u00f6st", "a b", "%31", "u@h", "h" * 300, "[v1.a]", "[fe80::1%25lo]",
    "1.2.3.4.5", "\uff11\uff12\uff17.0.0.1", "10.0.0.1\t", "",
)  # fmt: skip
OWN: Final = ("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "[64:ff9b::127.0.0.1]",
              "[2002:7f00:1::]", "127.9.9.9")  # fmt: skip
HOSTS: Final = ("10.0.0.1", "node1", "NODE1.", "[2001:db8::1]", *OWN, *FORBIDDEN)
_NOBODYS: Final = re.compile(
    f"(?!https?://)|https?://(({'|'.join(map(re.escape, FORBIDDEN))})[:/]"
    f"|({'|'.join(map(re.escape, OWN))}):{OWN_PORT}/)",
    re.IGNORECASE,
)
PORTS: Final = (
    "",
    ":9000",
    ":9001",
    f":{OWN_PORT}",
    ":0",
    ":65536",
    ":-1",
    ":\u0661",
    ":" + "9" * 5000,
)
TAILS: Final = ("", "/", "/rg_0.0", "/..", "//", "?x", "#x", "/\r\nX: y", "/%2e", "\x00")
CLIENTS: Final = ("10.0.0.1", "10.0.0.2", "127.0.0.1", "127.0.0.9", "::1", "2001:db8::1",
                  "2001:db8::2", "::ffff:10.0.0.1", "fe80::1%eth0", "", "unix")  # fmt: skip
AUTHORIZATIONS: Final = (
    "", "Bearer", "Bearer ", "bearer  ", "Basic secret", "Bearer Secret", "Bearer secret x",
    "secret", "Bearer \xff\xfe", "Bearer zer", "Bearer zeroo", "Bearer rg_0", "Bearer zero,first",
    "Bearer None", "Bearer " + "x" * 8000,
    "Bearer\tsecret", "Bearer secret\x00", "Bearer z\u00e9ro",
)  # fmt: skip
CHANGES: Final = (
    ("POST", "/v1/groups/rg_0/evict"), ("PUT", "/v1/quarantine/h"), ("DELETE", "/v1/quarantine/h"),
    ("PUT", "/v1/quarantine/groups/rg_0"), ("DELETE", "/v1/quarantine/groups/rg_0"),
    ("POST", "/v1/pause"), ("DELETE", "/v1/pause"), ("POST", "/v1/policy/reload"),
)  # fmt: skip


class Game:
    """One monitor, and what is wrong with how it answers."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.findings = dice, list[str]()
        self.clients = dice.choices(CLIENTS, k=dice.choice((1, 2, 20)))
        self.own = None if dice.random() < 0.15 else "secret"
        self.groups = TOKENS if self.own and dice.random() < 0.6 else {}
        self.clock, self.memory, self.evicted = HandClock(), Memory(), list[str]()
        self.metrics = CollectorRegistry()
        fetcher = mock.create_autospec(Fetcher, instance=True)
        fetcher.tokens = Tokens(self.own, self.groups)
        desk = app_context(
            self.clock, registry=Registry(self.clock, self.memory), fetcher=fetcher,
            metrics=self.metrics, evict=self._evict, is_own=lambda url: is_here(url, OWN_PORT),
        )  # fmt: skip
        self.registry, self.quarantine, self.pause = desk.registry, desk.quarantine, desk.pause
        self.metrics.register(Filled((page_metrics.REFUSED,), lambda: self.registry.refused))
        self.client = create_app(desk).test_client()
        self.quarantine.add(
            QuarantineEntry(
                name="bad", reason="x", author="x", since_s=0.0, until_s=None, incident_id=None
            )
        )

    def _evict(self, group: str, reason: str, author: str) -> Any:
        self.evicted.append(group)
        return f"by_hand-{group}"

    def play(self) -> list[str]:
        """Some hundred requests."""
        moves = (self.register, self.register, self.register, self.give_back, self.admission,
                 self.change, self.pass_time)  # fmt: skip
        for _ in range(self.dice.choice((5, 50, 300))):
            if self.findings:
                break
            self.dice.choice(moves)()
        return self.findings or self.settle()

    def say(self, text: str) -> None:
        self.findings.append(text[:600])

    # -- requests ---------------------------------------------------------------------------------

    def token(self) -> str | None:
        """A header; the right ones are not rare."""
        groups = [f"Bearer {token}" for token in TOKENS.values()]
        right = ["Bearer secret"] * 6 + groups * 2 + ["BEARER secret", "bearer   zero  "]
        return self.dice.choice((None, *right, *AUTHORIZATIONS))

    def may(self, header: str | None, groups: set[str] | None) -> bool:
        """Whether this header is right; `groups`: of the rank, or None for any other change."""
        if self.own is None:
            return groups is not None
        kind, _, token = (header or "").partition(" ")
        if kind.lower() != "bearer":
            return False
        theirs = {group for group, held in self.groups.items() if held == token.strip()}
        return token.strip() == self.own or (groups is not None and groups <= theirs)

    def ask(self, method: str, path: str, header: str | None, body: Any = None) -> tuple[int, Any]:
        """Send it, as somebody."""
        dice, headers = self.dice, {} if header is None else {"Authorization": header}
        if dice.random() < 0.1:
            headers["Content-Type"] = dice.choice(("", "text/xml", "a/b;" * 900, "\xff"))
        if dice.random() < 0.05:
            headers["X-Forwarded-For"] = headers["Forwarded"] = dice.choice(HOSTS[:8])
        if dice.random() < 0.05:
            headers["Host"] = dice.choice(("", "h:x", "[", "\xff", "h" * 3000))
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body, ensure_ascii=dice.random() < 0.5)
            body = body.encode("utf-8", "surrogatepass")
        began_s = time.process_time()
        where = {"REMOTE_ADDR": dice.choice(self.clients)}
        said = self.client.open(path, method=method, headers=headers, data=body, environ_base=where)
        took_s = time.process_time() - began_s
        request = f"{method} {path[:80]} {(body or b'')[:300]!r} with {header!r:.100}"
        if took_s > SLOW_S:
            self.say(f"{request}: took {took_s:.1f} s")
        return self.read(said, request)

    def read(self, said: Any, request: str) -> tuple[int, Any]:
        """The status and the JSON of an answer."""
        code = said.status_code
        if (code >= 500 and code != 503) or len(said.data) > 16 << 10:
            self.say(f"{request}: {said.status_code}, {len(said.data)} bytes, {said.data[:200]!r}")
        try:
            answer = json.loads(
                said.data, parse_constant=lambda name: self.say(f"{request}: {name}")
            )
        except ValueError:
            if said.status_code not in (301, 308):
                self.say(f"{request}: {said.status_code} {said.data[:200]!r} is no JSON")
            return said.status_code, {}
        if said.status_code >= 400 and not (isinstance(answer, dict) and answer.get("error")):
            self.say(f"{request}: {said.status_code} says nothing")
        return said.status_code, answer

    def _url(self) -> str:
        dice = self.dice
        if dice.random() < 0.4:
            return f"http://10.0.0.{dice.randrange(1, 5)}:{dice.randrange(9000, 9004)}"
        if dice.random() < 0.6:
            return f"http://{dice.choice(HOSTS)}:{dice.choice((9000, OWN_PORT))}"
        scheme = dice.choice(("http", "http", "https", "HTTP", "ftp", "file", "", "http:"))
        return f"{scheme}://{dice.choice(HOSTS)}{dice.choice(PORTS)}{dice.choice(TAILS)}"

    def registration(self) -> Any:
        """As an honest rank sends it, or nearly."""
        dice = self.dice
        who = {
            "job": "j", "group": dice.choice(GROUPS), "group_rank": dice.randrange(3),
            "world_size": 3, "host": dice.choice(("h", "node1", "bad")),
            "pid": dice.randrange(1, 9), "incarnation": dice.choice("abc"),
        }  # fmt: skip
        if dice.random() < 0.3:
            who["launched_as"] = dice.choice(GROUPS)
        body: Any = {"schema": 1, "identity": who, "url": self._url(), "lease_s": 15.0}
        if dice.random() < 0.3:
            body["age_s"] = dice.choice((0.0, 5.0, 1e6))
        for _ in range(dice.choice((0, 0, 0, 1, 3))):
            box = dice.choice((body, who))
            odd = deepcopy(dice.choice((*ODD, *TEXTS, *NUMBERS)))
            key = dice.choice((*box, "place", "launched_as", "known_as", dice.choice(TEXTS)))
            if isinstance(odd, bytes):
                box.pop(key, None)
            elif dice.random() < 0.2:
                box[key] = {f"{n}": odd for n in range(dice.choice((1, 20, 3000)))}
            else:
                box[key] = odd
        return body

    def register(self) -> None:
        """Somebody registers something."""
        body, header, before = self.registration(), self.token(), self.state()
        if self.dice.random() < 0.1:
            body = self.dice.choice(
                (*RAW, b"\xef\xbb\xbf{}", b'{"identity":' * 900, b"1e9" * 30_000)
            )
        status, said = self.ask("POST", "/v1/register", header, body)
        if status != 200:
            self.unchanged(before, f"a registration that is answered {status}: {said}")
            return
        identity = body.get("identity")
        named = {identity["group"], identity.get("launched_as") or identity["group"]}
        if not self.may(header, named):
            self.say(f"{header!r} registered a rank of {named}")

    def give_back(self) -> None:
        """Somebody gives a lease back: of who is there, or a made-up one."""
        dice, before, header = self.dice, self.state(), self.token()
        targets = self.registry.targets()
        rank, incarnation = dice.choice(("x", "..", "rg_0.", ".0", *IN_PATHS)), dice.choice("abc")
        if targets and dice.random() < 0.7:
            target = dice.choice(targets)
            rank, incarnation = target.rank, target.identity.incarnation
        path = f"/v1/register/{quote(rank.encode('utf-8', 'surrogatepass'), safe='')}"
        query = dice.choice(
            (f"?incarnation={incarnation}", "", "?incarnation=%ff", "?incarnation=")
        )
        self.ask("DELETE", path + query, header)
        if self.state() != before and not self.may(header, {rank.rpartition(".")[0]}):
            self.say(f"{header!r} gave back {rank}")

    def admission(self) -> None:
        """A launcher asks."""
        dice, before = self.dice, self.state()
        host = dice.choice(("h", "bad", *IN_PATHS))
        path = f"/v1/admission?host={quote(host.encode('utf-8', 'surrogatepass'))}"
        path += dice.choice(("", "&group=rg_0", "&group=", "&host=x", "&group=%ff%00", "&&&=", "#"))
        method = dice.choice(("GET", "GET", "GET", "POST", "HEAD", "PUT"))
        if method == "HEAD":
            return
        status, said = self.ask(method, path, self.token(), dice.choice((None, b"", *RAW)))
        held = {host} & {entry.name for entry in self.quarantine.active()}
        held |= {"rg_0"} & {entry.name for entry in self.quarantine.groups() if "rg_0" in path}
        good = (200, not held), (400, None), (401, None)  # by an odd Host header
        if method == "GET" and (status, said.get("admit")) not in good:
            self.say(f"admission of {host!r}: {status} {said}")
        self.unchanged(before, "a question")

    def change(self) -> None:
        """Somebody asks for what the monitor's own token is for."""
        (method, path), header, before = self.dice.choice(CHANGES), self.token(), self.state()
        body = self.dice.choice(({"reason": "x"}, {"reason": "x", "hours": 1}, *RAW))
        self.ask(method, path, header, body)
        if not self.may(header, None):
            self.unchanged(before, f"{method} {path} with {header!r}")

    def pass_time(self) -> None:
        """Leases lapse, ranks answer."""
        self.clock.advance(self.dice.choice((0.5, 5.0, 60.0, 4000.0)))
        if self.dice.random() < 0.5:
            targets = self.registry.targets()
            dead = Process(alive=False, dead_age_s=0.0)
            self.registry.heard({
                target.rank: StateReport(
                    identity=target.identity,
                    process=Process(alive=True) if self.dice.random() < 0.8 else dead,
                )
                for target in targets
            })  # fmt: skip
        if self.dice.random() < 0.5:
            self.registry.expire()

    # -- what must hold -------------------------------------------------------------------------

    def state(self) -> tuple[Any, ...]:
        """All that a request may change."""
        table = self.registry
        return (
            tuple((target.rank, target.url, target.identity, target.heard_s)
                  for target in table.targets()),
            len(self.memory.targets), self.memory.writes, self.quarantine.active(),
            self.quarantine.groups(), self.pause.current(), len(self.evicted),
            dict(table._brought), dict(table._left),
        )  # fmt: skip

    def unchanged(self, before: tuple[Any, ...], what: str) -> None:
        pairs = zip(before, self.state(), strict=True)
        if changed := [(old, new) for old, new in pairs if old != new]:
            self.say(f"{what} changed {changed}")

    def settle(self) -> list[str]:
        """What is in the table may be in it, and an honest rank comes in."""
        table = self.registry
        for target in table.targets():
            self.judge(target)
        counted = Counter(target.bringer for target in table.targets())
        if dict(counted) != dict(table._brought):
            self.say(f"{table._brought} is counted, {counted} is there")
        if {str(listed.rank) for listed in table.targets()} != set(self.memory.targets):
            self.say("the store has other ranks than the table")
        if len(table.targets()) > RANKS_MOST or max((0, *counted.values())) > RANKS_MOST // 2:
            self.say(f"{len(table.targets())} ranks, {counted}")
        generate_latest(self.metrics)
        self.clock.advance(1e6)
        table.expire()
        who = {"job": "j", "group": "honest", "group_rank": 0, "world_size": 1, "host": "h",
               "pid": 1, "incarnation": "honest"}  # fmt: skip
        body = {"schema": 1, "identity": who, "url": "http://10.9.9.9:9000", "lease_s": 15.0}
        said = self.client.post(
            "/v1/register", json=body, headers={"Authorization": "Bearer secret"}
        )
        if said.status_code != 200 or len(table.targets()) != 1:
            self.say(f"an honest rank is answered {said.status_code} {said.data[:200]!r}")
        return self.findings

    def judge(self, target: Any) -> None:
        """One that is in the table."""
        names = (target.identity.group, target.identity.host, target.identity.incarnation)
        odd = (not n.isprintable() or n[:1] in ("-", "=") or set(n) & set(" /<\"'") for n in names)
        if any(odd) or ":" in target.identity.group:
            self.say(f"{names} are in the table")
        if _NOBODYS.match(target.url + "/") or not 1.0 <= target.lease_s <= 3600.0:
            self.say(f"{target.url} for {target.lease_s} s is in the table")
        again, _ = target_from_json(json.loads(json.dumps(self.memory.targets[target.rank])), 0.0)
        if again.identity != target.identity:
            self.say(f"{target.rank} is another after a restart")


def play(dice: random.Random) -> list[str]:
    """One game; some are watched for what they leave in memory."""
    watched = dice.random() < 1 / 16
    if watched:
        tracemalloc.start()
    try:
        with (
            mock.patch.object(registry, "RANKS_MOST", RANKS_MOST),
            mock.patch.object(registry, "NEW_A_MINUTE", NEW_A_MINUTE),
        ):
            game = Game(dice)
            findings = game.play()
        gc.collect()  # a request and its environment hold each other until then
        grown = tracemalloc.get_traced_memory()[0] if watched else 0
    finally:
        if watched:
            tracemalloc.stop()
    return findings + ([f"{grown >> 20} MiB are left of it"] if grown > GROWN_MOST else [])
