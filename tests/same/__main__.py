"""`python -m tests.same record DIR` and `python -m tests.same compare DIR`.

`record` writes inputs (dumps, journals; once) and answers into DIR. `compare` asks again on the
same inputs, leaves the answers in DIR/now, and prints what differs as PART CASE: PATH BEFORE ->
AFTER; exit 1 if anything does. `--only PART` asks for some parts. Accepted differences are in a
TOML file, each with its reason; what is left out matches anything, `*` any text:

    [[accepted]]
    part = "cli"
    case = "evict --help"
    path = "options*"
    reason = "issue 22, 6: commands are grouped"
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from tests.same import parts
from tests.same.parts import CLEAN, PARTS, ROOT

_ACCEPTED: Final = Path(__file__).with_name("accepted.toml")
_WIDTH: Final = 110
_NOTHING: Final = "(nothing)"
Answers = dict[str, dict[str, Any]]
Path_ = tuple[str, ...]
"""Part, case, and the way through its JSON."""


def main() -> int:
    if sys.argv[1:2] == ["traced"]:
        return parts.traced(Path(sys.argv[2]), sys.argv[3:])
    top = argparse.ArgumentParser(prog="python -m tests.same", description=__doc__,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    top.add_argument("what", choices=("record", "compare"))
    top.add_argument("folder", type=Path)
    top.add_argument(
        "--only", action="append", choices=PARTS, metavar="PART", help=", ".join(PARTS)
    )
    top.add_argument("--case", default="*", metavar="GLOB", help="compare: these cases only")
    top.add_argument("--accepted", type=Path, default=_ACCEPTED, metavar="FILE")
    top.add_argument("--most", type=int, default=40, metavar="N", help="differences printed")
    args = top.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0" or "LIGHTKEEPER_MONITOR" in os.environ:
        os.execve(sys.executable, [sys.executable, "-m", "tests.same", *sys.argv[1:]], CLEAN)
    folder = args.folder.resolve()
    chosen = [name for name in PARTS if name in (args.only or PARTS)]
    began_s = time.monotonic()
    if args.what == "record":
        if not (folder / "inputs" / parts.MANIFEST).exists():
            write_inputs(folder / "inputs")
            print(f"inputs written, {time.monotonic() - began_s:.0f} s", flush=True)
        asked = answers(folder / "inputs", chosen, "*")
        save(folder / "frozen", asked)
        commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, text=True,
                                capture_output=True, check=False).stdout.strip()  # fmt: skip
        (folder / "frozen" / "commit").write_text(f"{commit} {time.strftime('%F %T')}\n")
        print(f"{Counter({name: len(cases) for name, cases in asked.items()})}, "
              f"{time.monotonic() - began_s:.0f} s; {folder / 'frozen'}")  # fmt: skip
        return failed(asked)
    asked = answers(folder / "inputs", chosen, args.case)
    save(folder / "now", asked)
    status = told(folder, asked, args) | failed(asked)
    print(f"{time.monotonic() - began_s:.0f} s; answers in {folder / 'now'}")
    return status


# -- asking -------------------------------------------------------------------------------------


def write_inputs(inputs: Path) -> None:
    """What the product is asked about, written once: later moves of test code change none of it."""
    shutil.rmtree(inputs, ignore_errors=True)
    inputs.mkdir(parents=True)
    os.chdir(inputs)
    from tests.corpus.fleet import MEGATRON, write_fleet

    with _pool() as pool:
        made = pool.map(parts.write_case, range(len(parts.corpus_cases())), chunksize=8)
        journals = pool.map(parts.write_journal, parts.journal_names())
        pool.submit(write_fleet, Path("big"), 128, 2000, culprit=13, mix=MEGATRON).result()
        manifest = {**dict(filter(None, made)), **pool.submit(parts.write_captures).result()}
        list(journals)
    Path(parts.MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True))


def _pool(most: int = 2) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(most, multiprocessing.get_context("fork"))


def _asked(name: str, case: str) -> tuple[str, str, Any, float]:
    began_s = time.monotonic()
    try:
        answer = json.loads(json.dumps(PARTS[name].answer(case), sort_keys=True))
    except Exception as exc:  # noqa: BLE001 one case says nothing about the others
        answer = {"failed": f"{type(exc).__name__}: {exc}"}
    return name, case, answer, time.monotonic() - began_s


def answers(inputs: Path, chosen: list[str], cases: str) -> Answers:
    """All answers of these parts."""
    os.chdir(inputs)
    answered: Answers = {name: {} for name in chosen}
    spent_s: Counter[str] = Counter()
    for alone in (False, True):
        with _pool(1 if alone else 2) as pool:
            asked = [pool.submit(_asked, name, case) for name in chosen
                     if PARTS[name].alone == alone
                     for case in PARTS[name].cases() if fnmatchcase(case, cases)]  # fmt: skip
            for done in as_completed(asked):
                name, case, answer, took_s = done.result()
                answered[name][case] = answer
                spent_s[name] += took_s
    if "analyze" in answered and cases == "*":
        answered["scoreboard"] = parts.scoreboard(answered["analyze"])
    print(", ".join(f"{name} {s:.0f} s" for name, s in spent_s.items()))
    return answered


def save(folder: Path, answered: Answers) -> None:
    """A file a part, a line a case."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, cases in answered.items():
        lines = (f"{json.dumps(case)}: {json.dumps(cases[case], sort_keys=True)}"
                 for case in sorted(cases))  # fmt: skip
        (folder / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


# -- comparing ----------------------------------------------------------------------------------


def differences(before: Any, after: Any, at: Path_) -> Iterator[tuple[Path_, Any, Any]]:
    """Path, before, after."""
    if isinstance(before, dict) and isinstance(after, dict):
        pairs = [(str(key), before.get(key, _NOTHING), after.get(key, _NOTHING))
                 for key in sorted(before.keys() | after.keys())]  # fmt: skip
    elif isinstance(before, list) and isinstance(after, list):
        most = max(len(before), len(after))
        pairs = [(str(n), before[n] if n < len(before) else _NOTHING,
                  after[n] if n < len(after) else _NOTHING) for n in range(most)]  # fmt: skip
    else:
        if before != after:
            yield at, before, after
        return
    for key, old, new in pairs:
        yield from differences(old, new, (*at, key))


def _accepted(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    rules: list[dict[str, str]] = tomllib.loads(path.read_text()).get("accepted", [])
    for rule in rules:
        if not rule.get("reason") or rule.keys() - {"part", "case", "path", "reason"}:
            raise SystemExit(f"{path}: {rule}: expected part, case, path, and a reason")
    return rules


def told(folder: Path, answered: Answers, args: argparse.Namespace) -> int:
    """Print all differences; 1 if there are any that nobody accepted."""
    rules, used, count = _accepted(args.accepted), Counter[int](), Counter[str]()
    for name, cases in answered.items():
        before = json.loads((folder / "frozen" / f"{name}.json").read_text())
        if args.case != "*":
            before = {case: before.get(case) for case in cases}
        if name in PARTS and not PARTS[name].strict:
            _report(name, before, cases)
            continue
        for path, old, new in differences(before, cases, (name,)):
            rule = next((n for n, accepted in enumerate(rules) if _fits(accepted, path)), None)
            if rule is not None:
                used[rule] += 1
                continue
            count[name] += 1
            if count.total() <= args.most:
                part, case, *rest = path
                print(f"{part} {case}: {'.'.join(rest)}  {_short(old)} -> {_short(new)}")
    for n, entry in enumerate(rules):
        print(
            f"accepted {used[n]}: {entry['reason']}"
            + ("" if used[n] else " (nothing: take it out)")
        )
    for name in answered:
        if name not in PARTS or PARTS[name].strict:
            print(f"{name}: {len(answered[name])} cases, {count[name] or 'no'} differences")
    return bool(count)


def _fits(rule: Mapping[str, str], path: Path_) -> bool:
    places = {"part": path[0], "case": path[1], "path": ".".join(path[2:])}
    return all(fnmatchcase(place, rule.get(name, "*")) for name, place in places.items())


def _short(value: Any) -> str:
    text = value if value == _NOTHING else json.dumps(value)
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..."


def failed(answered: Answers) -> int:
    """Print what could not be asked; 1 if there is such a thing."""
    lines = [(part, case, answer["failed"]) for part, cases in answered.items()
             for case, answer in cases.items() if "failed" in (answer or ())]  # fmt: skip
    for line in lines:
        print("NOT ASKED:", *line)
    return bool(lines)


def _report(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    for case in after:
        cells = []
        for what, new in after[case].items():
            old = before.get(case, {}).get(what)
            if isinstance(new, list | dict | str):
                continue
            ratio = f" ({new / old:.2f})" if old and new != old else ""
            cells.append(f"{what} {old} -> {new}{ratio}" if new != old else f"{what} {new}")
        print(f"{name} {case}: {', '.join(cells) or after[case]}")


if __name__ == "__main__":
    sys.exit(main())
