"""No character from outside moves a terminal, reorders a line or forges one in a log."""

from __future__ import annotations

import io
import json
import logging

import pytest

from lightkeeper.worker_server.plain_text import LineFormatter, escaped, formatter

EVIL = "x\n2026-11-25 22:00:00,000 WARNING forged\r\x1b[2J\x9b1m\u202eabc\u2066\u2028\x00\x7f"


def test_what_is_escaped_is_printable_and_what_is_kept_stays() -> None:
    assert escaped(EVIL).isprintable()
    assert escaped("a\n\tb\x1b[0m", "\n\t") == "a\n\tb\\x1b[0m"
    assert escaped("Grüße, 世界") == "Grüße, 世界"
    assert escaped("\ud800") == "\\ud800"


@pytest.mark.parametrize("as_argument", [True, False])
def test_a_log_line_is_one_line(as_argument: bool) -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(LineFormatter("%(levelname)s %(message)s"))
    words = ("evict %s", EVIL) if as_argument else (EVIL.replace("%", ""),)
    handler.emit(logging.LogRecord("n", logging.INFO, "f", 1, words[0], words[1:], None))
    [line] = out.getvalue().splitlines()
    assert line.isprintable()


def test_a_traceback_keeps_its_lines_indented_and_loses_its_escapes() -> None:
    with pytest.raises(ValueError, match="x") as caught:
        int(EVIL)
    seen = (caught.type, caught.value, caught.tb)
    record = logging.LogRecord("n", logging.ERROR, "f", 1, "failed", (), seen)
    lines = LineFormatter("%(message)s").format(record).split("\n")
    assert len(lines) > 3
    assert all(line.isprintable() for line in lines)
    assert all(line.startswith("    ") for line in lines[1:])  # the value has a line of its own


def record_of(message: str, **more: object) -> logging.LogRecord:
    """Written on 2026-11-25 at 20:53:52.123 UTC."""
    at = {"created": 1795640032.1234, "levelname": "WARNING", "name": "lightkeeper.x"}
    return logging.makeLogRecord({**at, "msg": message, **more})


def test_the_time_of_a_line_is_utc_and_says_so() -> None:
    line = formatter("text").format(record_of("a"))
    assert line == "2026-11-25T20:53:52.123Z WARNING lightkeeper.x: a"


def test_as_json_a_record_is_one_object_on_one_line_with_what_it_is_about() -> None:
    record = record_of(EVIL, incident="i-1", group="rg_1", rank="")
    line = formatter("json").format(record)
    assert line.isprintable()
    assert line.isascii()
    assert json.loads(line) == {
        "time": "2026-11-25T20:53:52.123Z", "level": "warning", "logger": "lightkeeper.x",
        "message": EVIL, "incident": "i-1", "group": "rg_1",
    }  # fmt: skip


def test_as_json_a_traceback_is_a_field() -> None:
    with pytest.raises(ValueError, match="x") as caught:
        int(EVIL)
    seen = (caught.type, caught.value, caught.tb)
    line = formatter("json").format(record_of("failed", exc_info=seen))
    assert "\n" not in line
    assert json.loads(line)["exception"].startswith("Traceback (most recent call last):\n")
