"""The one warning: wherever it goes, nothing comes back to training."""

from __future__ import annotations

import io
import sys
import warnings

import pytest

from lightkeeper.worker_server.harmless import warn
from tests.worker_server.ranks import run_python


def test_it_is_a_warning(recwarn):
    warn("lightkeeper is lost")
    assert [str(warning.message) for warning in recwarn] == ["lightkeeper is lost"]


def test_it_is_one_line_without_source_and_is_ignored_by_name():
    code = "from lightkeeper.worker_server.harmless import warn; warn('lost')"
    said = {
        flags: run_python(*flags, "-c", code).stderr
        for flags in ((), ("-W", "ignore:::lightkeeper"))
    }
    assert list(said.values()) == ["lightkeeper:0: RuntimeWarning: lost\n", ""]


def test_where_warnings_are_errors_it_is_a_line_on_stderr(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn("lightkeeper is lost")
    assert capsys.readouterr().err == "RuntimeWarning: lightkeeper is lost\n"


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


def written(message, category, *_):
    """As the standard library shows a warning: what is no OSError comes out of `warn`."""
    sys.stderr.write(f"{category.__name__}: {message}\n")


@pytest.mark.parametrize("action", ["always", "error"])
@pytest.mark.parametrize("stream", [closed(), None, object()], ids=["closed", "none", "odd"])
def test_a_stderr_that_cannot_be_written_to_is_silence(monkeypatch, stream, action):
    with warnings.catch_warnings():
        warnings.simplefilter(action)
        monkeypatch.setattr(warnings, "showwarning", written)
        monkeypatch.setattr(sys, "stderr", stream)
        warn("lightkeeper is lost")
