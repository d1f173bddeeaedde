"""The one warning: wherever it goes, nothing comes back to training."""

from __future__ import annotations

import io
import sys
import warnings

import pytest

from lightkeeper.worker_server.rank.warn_once import warn


def test_it_is_a_warning(recwarn):
    warn("lightkeeper is lost", 2)
    assert [str(warning.message) for warning in recwarn] == ["lightkeeper is lost"]


def test_where_warnings_are_errors_it_is_a_line_on_stderr(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn("lightkeeper is lost", 2)
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
        warn("lightkeeper is lost", 2)
