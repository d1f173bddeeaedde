"""A policy file: what it may say, and how all that is wrong with it is told at once."""

import tomllib

import pytest

from lightkeeper.monitor.decide.links import PLACEHOLDERS
from lightkeeper.monitor.decide.rules import (
    DEFAULT,
    GUARDS,
    THRESHOLDS,
    Effective,
    PolicyAction,
    PolicyError,
    changes,
    policy_from,
    policy_to_json,
)
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.queries import PrometheusQuery
from lightkeeper.monitor.model.verdict import FAULTS, Kind, Severity
from lightkeeper.worker_server.wire import Weight
from tests.monitor import policy_example


def read(text: str):
    return policy_from(tomllib.loads(text))


def problems(text: str) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        read(text)
    return list(caught.value.problems)


def test_an_empty_file_is_the_default() -> None:
    rules = read("")
    assert (rules.policy, dict(rules.options)) == (DEFAULT, {})


def test_the_example_has_every_option_with_its_default() -> None:
    text = policy_example.PATH.read_text(encoding="utf-8")
    assert text == policy_example.example(), "run python -m tests.monitor.policy_example"
    rules = read(text)
    assert rules.policy == DEFAULT
    assert dict(rules.options).keys() == {*GUARDS, *THRESHOLDS, "observe"}
    assert KeeperConfig.from_options(rules.options) == KeeperConfig()


def test_the_row_of_prometheus_of_the_example_is_one() -> None:
    text = policy_example.PATH.read_text(encoding="utf-8")
    lines = text[text.index("# [[prometheus]]") :].partition("\n\n")[0].split("\n")
    (query,) = read("\n".join(line.removeprefix("# ") for line in lines)).policy.queries
    assert (query.code, query.weight, query.host) == ("fan-stopped", Weight.SLOW, "node")


def test_the_links_of_the_example_are_usable() -> None:
    text = policy_example.PATH.read_text(encoding="utf-8")
    lines = text[text.index("# [links]") :].split("\n")
    links = read("\n".join(line.removeprefix("# ") for line in lines)).policy.links
    assert list(links) == ["W&B", "MLflow", "GPUs", "trace"]


def test_one_action_holds_for_all_severities_and_a_table_for_some() -> None:
    policy = read("""
        [actions]
        dead = "page"
        straggler = { info = "observe", critical = "page" }
    """).policy
    assert {policy.action(Kind.DEAD, severity) for severity in Severity} == {PolicyAction.PAGE}
    assert policy.action(Kind.STRAGGLER, Severity.INFO) is PolicyAction.OBSERVE
    assert policy.action(Kind.STRAGGLER, Severity.WARNING) is PolicyAction.EVICT_AND_QUARANTINE
    assert policy.action(Kind.STRAGGLER, Severity.CRITICAL) is PolicyAction.PAGE


def test_what_is_written_is_read_as_it_was() -> None:
    policy = read("""
        [actions]
        mismatch = "evict_and_quarantine"
    """).policy
    assert policy_from(policy_to_json(policy)).policy == policy


EACH = ", or one of them for each of info, warning, critical"
CASES = {
    "unknown table": ("[action]\n", ["action: unknown table, did you mean actions?"]),
    "no table": ("guards = 3\n", ["guards: is 3, expected a table [guards]"]),
    "mode": ('[policy]\nmode = "kill"\n', ["policy.mode: is 'kill', expected act or observe"]),
    "key of policy": ("[policy]\nmod = 1\n", ["policy.mod: unknown key, did you mean mode?"]),
    "unknown option": (
        "[guards]\ncool_down = 3\n", ["guards.cool_down: unknown key, did you mean cool_down_s?"]
    ),
    "unlike any option": (
        "[thresholds]\nzzz = 3\n",
        ["thresholds.zzz: unknown key, expected a name that `lightkeeper policy show` lists"],
    ),
    "other table": (
        "[guards]\nstall_floor_s = 3\n",
        ["guards.stall_floor_s: belongs into table [thresholds]"],
    ),
    "observe is a mode": (
        "[thresholds]\nobserve = true\n",
        ["thresholds.observe: unknown key, expected a name that `lightkeeper policy show` lists"],
    ),
    "fraction": (
        "[guards]\nmin_replicas = 1.5\n",
        ["guards.min_replicas: is 1.5, expected a whole number such as 1"],
    ),
    "text": (
        '[guards]\ncool_down_s = "3"\n',
        ["guards.cool_down_s: is '3', expected a number such as 20.0"],
    ),
    "truth": (
        "[guards]\nbudget_per_hour = true\n",
        ["guards.budget_per_hour: is True, expected a whole number such as 4"],
    ),
    "range": (
        "[guards]\nbreaker_share = 1.5\n", ["guards.breaker_share: is 1.5, expected 0 to 1"]
    ),
    "not a number": (
        "[guards]\nbreaker_share = nan\n", ["guards.breaker_share: is nan, expected 0 to 1"]
    ),
    "kind": (
        '[actions]\nhang = "page"\n',
        [f"actions.hang: unknown kind of fault, expected {', '.join(FAULTS)}"],
    ),
    "action, once for all severities": (
        '[actions]\ndead = "kill"\n',
        [f"actions.dead: is 'kill', expected {', '.join(PolicyAction)}{EACH}"],
    ),
    "severity": (
        '[actions]\ndead = { fatal = "page" }\n',
        [f"actions.dead: is {{'fatal': 'page'}}, expected {', '.join(PolicyAction)}{EACH}"],
    ),
    "nobody to evict": (
        '[actions]\nlighthouse_away = "evict"\n',
        [f"actions.lighthouse_away: is 'evict', expected observe, page{EACH}"],
    ),
    "two options that do not go together": (
        "[thresholds]\nstraggler_windows = 3\n",
        ["straggler_slow_windows is 4, expected at most straggler_windows (3)"],
    ),
    "grace of nothing": (
        "[grace]\nhang = 3\n",
        [f"grace.hang: unknown kind of fault, expected {', '.join(FAULTS)}"],
    ),
    "grace too long": ("[grace]\ndead = 99\n", ["grace.dead: is 99, expected seconds, 0 to 15"]),
    "grace in words": (
        "[grace]\ndead = true\n", ["grace.dead: is True, expected seconds, 0 to 15"],
    ),
    "no rows": ("prometheus = 3\n", ["prometheus: expected at most 100 tables [[prometheus]]"]),
    "too many rows": (
        "[[prometheus]]\ncode = 'a'\nquery = 'b'\n" * 101,
        ["prometheus: expected at most 100 tables [[prometheus]]"],
    ),
    "no links": ("links = 3\n", ["links: is 3, expected a table [links]"]),
    "too many links": (
        "[links]\n" + "\n".join(f"l{n} = 'http://h/'" for n in range(17)),
        ["links: expected at most 16"],
    ),
    "links": (
        """
        [links]
        "" = "http://h/"
        a = 7
        b = "javascript:alert(1)"
        c = "http://{host}/"
        d = "http://u:p@h/"
        e = "http://h/{rnk}"
        """,
        ["links.: a name has 1 to 40 characters",
         "links.a: expected a URL of at most 2000 characters",
         *(f"links.{name}: expected http://HOST/... or https://HOST/..., without a password"
           for name in "bcd"),
         f"links.e: {{rnk}} is none of {', '.join(PLACEHOLDERS)}"],
    ),
    "rows": (
        """
        [[prometheus]]
        code = "Bad code"
        query = "up"
        [[prometheus]]
        query = "up"
        [[prometheus]]
        code = "a"
        query = "up"
        weigth = "slow"
        [[prometheus]]
        code = "a"
        query = "up"
        weight = "deadly"
        [[prometheus]]
        code = "a"
        query = 7
        """,
        [("prometheus 1: Expected `str` matching regex '^[a-z0-9{][a-z0-9{}_-]{0,31}$' - at "
          "`$.code`"),
         "prometheus 2: Object missing required field `code`",
         "prometheus 3: Object contains unknown field `weigth`",
         "prometheus 4.weight: is 'deadly', expected broken, ended, slow, leaving, context",
         "prometheus 5: Expected `str`, got `int` - at `$.query`"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "lines"), CASES.values(), ids=CASES.keys())
def test_each_mistake_is_one_line_with_key_and_what_was_expected(text, lines) -> None:
    assert problems(text) == lines


def test_all_mistakes_are_told_at_once() -> None:
    everything = (
        "x = 1\n[policy]\nmode = 1\n[actions]\ndead = 1\n[guards]\na = 1\n[thresholds]\nb = 1"
    )
    assert len(problems(everything)) == 5


def test_rows_of_prometheus_are_a_part_of_the_policy() -> None:
    rules = read("""
        [[prometheus]]
        code = "fan"
        query = "ipmi_fan_speed_state > 0"
        weight = "slow"
        text = "{name} stands still"
        device = "{name}"
        host = "node"
        [[prometheus]]
        code = "oom-kill"
        query = ""
    """)
    fan, silent = rules.policy.queries
    assert fan == PrometheusQuery(
        "fan", "ipmi_fan_speed_state > 0", Weight.SLOW, "{name} stands still", "{name}", "node"
    )
    assert (silent.query, silent.weight) == ("", Weight.CONTEXT)
    plain = policy_to_json(rules.policy)["prometheus"]
    assert policy_from({"prometheus": plain}).policy.queries == rules.policy.queries
    before, after = (Effective(KeeperConfig(), policy) for policy in (DEFAULT, rules.policy))
    assert changes(before, after)["prometheus.1"] == [None, plain[0]]
