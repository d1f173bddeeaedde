"""The page of versions: results replace results, and prose stays."""

from experiments.versions import page

PART = {"passed": 3, "skipped": 1, "failed": [], "seconds": 9}


def line(key, **parts):
    torch, torchft = key.split("+")
    return {"key": key, "found": [f"{torch}+cpu", torchft], "at": "2026-11-23", "code": "abc",
            "parts": parts}  # fmt: skip


def test_results_stand_between_their_marks_and_are_replaced():
    empty = f"# Versions\n\n{page.BEGIN}\nold\n{page.END}\n\nThe end.\n"
    once = page.text(empty, [line("2.13.0+0.2.0", unit=PART)])
    assert once.startswith("# Versions\n")
    assert once.endswith("\n\nThe end.\n")
    assert "old" not in once
    assert "| unit | 3 passed, 1 skipped |" in once
    assert page.text(once, [line("2.13.0+0.2.0", unit=PART)]) == once


def test_a_failure_is_named_and_what_was_not_run_is_a_dash():
    bad = PART | {"failed": ["tests::test_x"]}
    text = page.text(page.BEGIN + page.END, [line("b+n", unit=bad), line("a+n", demo=PART)])
    assert "| | torch a+cpu, TorchFT n | torch b+cpu, TorchFT n |" in text
    assert "| unit | - | 3 passed, 1 failed, 1 skipped |" in text
    assert "- b+n, unit: `tests::test_x`" in text
