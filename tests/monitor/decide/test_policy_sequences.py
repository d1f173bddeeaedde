"""What must hold for every sequence of faults and heals, whatever the operator does meanwhile.

A sequence is its seed: `sequence(17)` is the same everywhere. LIGHTKEEPER_DEEP=20 runs 200, and
takes each guard out in turn: some sequence has to tell.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field

import pytest

from lightkeeper.monitor.decide import guards as deciding
from lightkeeper.monitor.decide.pipeline import Pipeline
from lightkeeper.monitor.decide.rules import Policy, PolicyAction
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Eviction, Guard, Hold
from lightkeeper.monitor.model.incident import incident_from_json, incident_to_json
from lightkeeper.monitor.model.observation import Pause
from lightkeeper.monitor.model.verdict import Confidence, Kind, Severity
from tests.deep import DEEP, EXPLORES, only_explored
from tests.monitor import fleet as faults
from tests.monitor.fleet import START_S, Drive
from tests.monitor.shared_hosts import HostFleet

pytestmark = pytest.mark.integration  # many seconds

TICKS = 200
SHAPES = [(3, 1), (4, 1), (5, 1), (3, 2), (4, 2)]
HARMS = {
    "hang": faults.hang, "gil": faults.gil, "stop": faults.stop, "crash": faults.crash,
    "mismatch": faults.mismatch, "slow": lambda rank: faults.slow(rank, 3.0),
    "data": lambda rank: faults.slow_in(rank, "data", 0.8),
}  # fmt: skip

TOLD = [
    Guard.UNSURE, Guard.POLICY, Guard.MIN_REPLICAS, Guard.IN_FLIGHT, Guard.BUDGET,
    Guard.GROUP_BUDGET, Guard.COOL_DOWN, Guard.PAUSED, Guard.OBSERVE,
]  # fmt: skip
"""Guards whose absence breaks a rule that is checked here; the others have tests of their own."""


@dataclass
class Sequence:
    """One run: a fleet, its monitor, and what the operator does to both."""

    seed: int
    dice: random.Random = field(init=False)
    fleet: HostFleet = field(init=False)
    drive: Drive = field(init=False)
    config: KeeperConfig = field(init=False)
    policy: Policy = field(default_factory=Policy)
    asked: list[tuple[float, Eviction]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    twins: bool = False
    tie: bool = False
    first_s: float = 15.0
    """Nothing else happens before."""
    restarts: int = 0
    pairs: int = 0

    def __post_init__(self) -> None:
        dice = self.dice = random.Random(self.seed)
        self.twins, self.tie = dice.random() < 0.3, dice.random() < 0.3
        self.first_s = 35.0 if self.tie else 15.0
        shapes = [(4, 1), (5, 1), (4, 2)] if self.twins else SHAPES
        groups, size = dice.choice(shapes)
        self.fleet = HostFleet(
            groups, size, noise=0.2, seed=self.seed, lighthouse_min=dice.choice([None, 1, 2]),
        )  # fmt: skip
        self.fleet.script = sorted(self._script(), key=lambda line: line.at_s)
        self.config = self._config()
        self.drive = Drive(
            self.fleet, self.config, pipeline=Pipeline(self.config, policy=self.policy)
        )

    # -- what happens ------------------------------------------------------------------------

    def _script(self) -> list[faults.At]:
        dice, fleet = self.dice, self.fleet
        names = [rank.name for rank in fleet.ranks()]
        script = [*(self._twins() if self.twins else ()), *(self._tie() if self.tie else ())]
        for _ in range(dice.randint(1, 3 if script else 6)):
            rank, at_s = dice.choice(names), dice.uniform(self.first_s, 150)
            kind = dice.choice(sorted(HARMS))
            script.append(faults.at(at_s, fleet.harm(rank, HARMS[kind](rank))))
            if dice.random() < 0.3:
                script.append(faults.at(at_s + dice.uniform(1, 30), self._heal(rank)))
            if dice.random() < 0.2:
                group = rank.partition(".")[0]
                script.append(faults.at(at_s + dice.uniform(1, 40), faults.restart(group)))
        for _ in range(dice.choice([0, 0, 1, 1, 2])):
            hosts = sorted({rank.host for rank in fleet.ranks()})
            script.append(
                faults.at(dice.uniform(self.first_s, 150), fleet.lose(dice.choice(hosts)))
            )
        if dice.random() < 0.2:
            down = dice.choice([faults.lighthouse_restart, faults.lighthouse_away])
            script.append(faults.at(dice.uniform(self.first_s, 150), down(dice.uniform(1, 15))))
        if dice.random() < 0.2:
            script.append(
                faults.at(dice.uniform(self.first_s, 150), faults.late(dice.uniform(2, 9)))
            )
        return script

    def _twins(self) -> list[faults.At]:
        """Two groups hang at about the same time, while evictions take long."""
        dice, fleet, at_s = self.dice, self.fleet, self.dice.uniform(self.first_s, 75)
        groups = dice.sample(sorted(fleet.groups), 2)
        slow_for_s = dice.choice([0.0, dice.uniform(5, 30)])
        hangs = [
            faults.at(at_s + late_s, fleet.harm(f"{group}.0", faults.hang(f"{group}.0")))
            for group, late_s in zip(groups, (0.0, dice.choice([0.0, 2.0, 5.0])), strict=True)
        ]
        return [
            *hangs,
            faults.at(at_s, _evictor_works(False)),
            faults.at(at_s + slow_for_s, _evictor_works(True)),
        ]

    def _tie(self) -> list[faults.At]:
        """Weights of two sides differ, none of which outvotes the other; of a third is rg_0.

        Told before anybody leaves: equal flaws of a majority are beyond any vote.
        """
        fleet = self.fleet
        fleet.fingerprint_every = 5
        groups, at_s = sorted(fleet.groups), self.dice.uniform(15, 20)
        if len(groups) % 2:
            half = len(groups) // 2
            flaws = {1: groups[1 : 1 + half], 2: groups[1 + half :]}
        else:
            flaws = {1: groups[len(groups) // 2 :]}
        return [
            faults.at(at_s, fleet.harm(rank.name, faults.flip(rank.name, flaw)))
            for flaw, named in flaws.items()
            for group in named
            for rank in fleet.groups[group]
        ]

    def _heal(self, rank: str) -> faults.Fault:
        def do(fleet) -> None:
            faults.recover(rank)(fleet)
            fleet.rank(rank).slow = 1.0
            fleet.rank(rank).extra_s.clear()
            fleet.relent(rank.partition(".")[0])

        return do

    def _config(self) -> KeeperConfig:
        dice = self.dice
        if (self.twins or self.tie) and dice.random() < 0.7:  # each guard has to hold alone
            return KeeperConfig(budget_per_hour=100, cool_down_s=0.0, breaker_share=1.0)
        return KeeperConfig(
            observe=dice.random() < 0.1, min_replicas=dice.randint(1, 2),
            budget_per_hour=dice.randint(1, 6), budget_per_group=dice.randint(0, 3),
            cool_down_s=dice.choice([0.0, 5.0, 20.0]), breaker_share=dice.choice([0.34, 0.5, 1.0]),
        )  # fmt: skip

    def _policy(self) -> Policy:
        dice = self.dice
        actions = dict(Policy().actions)
        for kind in dice.sample(sorted(Kind), 2):
            actions.update(
                dict.fromkeys([(kind, s) for s in Severity], dice.choice([*PolicyAction]))
            )
        return Policy(actions)

    def meddle(self) -> None:
        """What an operator may do between two ticks."""
        dice, fleet = self.dice, self.fleet
        if dice.random() < (0.1 if fleet.going() else 0.008):
            self.restart()
        if dice.random() < 0.010:
            self.config, self.policy = self._config(), self._policy()
            self.drive.config = self.config
            self.drive.pipeline.reconfigure(self.config, self.policy)
        if fleet.pause is None and dice.random() < 0.008:
            until_s = None if dice.random() < 0.5 else fleet.now_s + dice.uniform(5, 40)
            fleet.pause = Pause("rack 7", "alice", fleet.now_s, until_s)
        elif fleet.pause is not None and dice.random() < 0.04:
            fleet.pause = None

    def restart(self) -> None:
        """Another monitor, which knows what the store has kept, through JSON."""
        self.restarts += 1
        self.fleet.end_evictor()
        kept = [incident_from_json(json.loads(json.dumps(incident_to_json(incident))))
                for incident in self.drive.seen.values()]  # fmt: skip
        past = (*self.fleet.evictions.values(), *self.fleet.left.values())
        self.drive.pipeline = Pipeline(self.config, kept, past, policy=self.policy)

    # -- what must hold ----------------------------------------------------------------------

    def step(self) -> None:
        self.meddle()
        paused, left = self.fleet.pause, dict(self.fleet.left)
        result = self.drive.step()
        going = self.fleet.going()  # as the decisions saw it
        for decision in result.decisions:
            if isinstance(decision, Hold):
                self.check(bool(decision.reason and decision.release), f"mute: {decision}")
                if decision.would is not None:
                    held = self._of(decision.would)
                    self.check(
                        self.config.observe or held is PolicyAction.OBSERVE, "observed unasked"
                    )
            else:
                if decision.incident_id in left:  # asked again after a restart: the same one
                    self.asked = [o for o in self.asked if o[1].incident_id != decision.incident_id]
                self.judge(decision, going, paused)
                going = {*going, decision.group}
        self.check(not result.detector_failures, f"crashed: {result.detector_failures}")

    def judge(self, evict: Eviction, going: set[str], paused: Pause | None) -> None:
        """One eviction, against the truth."""
        fleet, config, now_s = self.fleet, self.config, self.fleet.now_s
        others = going - {evict.group}
        shared = any(
            all(host in fleet.hosts(other) for other in others)
            for host in fleet.hosts(evict.group) & fleet.dead_hosts()
        )
        # groups for which the same ones stand still go together: no quorum forms before
        shared = shared or all(fleet.sick(other) for other in others)
        self.pairs += bool(others)
        left = [
            group
            for group in fleet.groups
            if group not in going | {evict.group} and fleet.able(group)
        ]
        least = max(config.min_replicas, fleet.lighthouse_min or 0)
        self.check(len(left) >= least, f"{evict.group}: {len(left)} left, {least} must be")
        self.check(fleet.sick(evict.group), f"{evict.group} is well")
        self.check(not others or shared, f"{evict.group} beside {sorted(others)}")
        of_hour = [asked for at_s, asked in self.asked if now_s - at_s < 3600]
        again = bool(evict.keep_out)  # a program that fails again: no budget, no cool-down
        self.check(again or len(of_hour) < config.budget_per_hour, "over the budget")
        mine = [asked for asked in of_hour if asked.group == evict.group]
        of_group = config.budget_per_group or config.budget_per_hour
        self.check(again or len(mine) < of_group, f"over the budget of {evict.group}")
        lately = {asked.group for at_s, asked in self.asked if now_s - at_s < config.cool_down_s}
        cooled = again or lately <= others or all(map(fleet.sick, lately))
        self.check(cooled or self._shares(evict.group, lately), "too soon")
        self.check(paused is None or fleet.pause is None, "paused")
        self.check(not config.observe, "in observe mode")
        allowed = self._of(evict)
        self.check(
            allowed in (PolicyAction.EVICT, PolicyAction.EVICT_AND_QUARANTINE), f"policy: {allowed}"
        )
        self.check(not evict.quarantine or allowed is not PolicyAction.EVICT, "quarantined unasked")
        incident = self.drive.seen[evict.incident_id]
        sure = incident.verdict.confidence is not Confidence.UNSURE
        self.check(sure, f"{evict.group}: it cannot be told who it is")
        self.check(bool(evict.reason), "no reason")
        self.asked.append((now_s, evict))

    def _shares(self, group: str, lately: set[str]) -> bool:
        return any(
            all(host in self.fleet.hosts(other) for other in lately)
            for host in self.fleet.hosts(group) & self.fleet.dead_hosts()
        )

    def _of(self, evict: Eviction) -> PolicyAction:
        incident = self.drive.seen[evict.incident_id]
        return self.policy.action(incident.kind, incident.severity)

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            at_s = self.fleet.now_s - START_S
            self.broken.append(f"sequence({self.seed}) at {at_s:.0f} s: {what}")


def _evictor_works(works: bool) -> faults.Fault:
    def do(fleet) -> None:
        fleet.evictor_works = works

    return do


def sequence(seed: int, ticks: int = TICKS) -> Sequence:
    made = Sequence(seed)
    for _ in range(ticks):
        made.step()
    return made


@pytest.mark.parametrize("seed", range(10 * DEEP if EXPLORES else 4))
def test_no_sequence_of_faults_and_heals_breaks_a_guard(seed) -> None:
    assert sequence(seed).broken == []


@only_explored  # minutes
@pytest.mark.timeout(900)
@pytest.mark.parametrize("guard", TOLD)
def test_a_monitor_without_one_of_its_guards_is_found_out(guard, monkeypatch) -> None:
    rest = tuple(guard_row for guard_row in deciding.GUARDS if guard_row[0] is not guard)
    monkeypatch.setattr(deciding, "GUARDS", rest)
    assert any(sequence(seed).broken for seed in range(300))
