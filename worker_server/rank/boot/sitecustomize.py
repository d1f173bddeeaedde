"""Attaches before the script begins: `lightkeeper.worker_server` puts it first on PYTHONPATH.

Python imports it by name, whatever it runs next. It leaves no trace: children do not find it, and
the `sitecustomize` that it hides is still imported.
"""

import contextlib
import importlib
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(_HERE))))


def _begin() -> None:
    sys.path.remove(_HERE)
    path = os.environ["PYTHONPATH"].partition(os.pathsep)[2]
    if path:
        os.environ["PYTHONPATH"] = path
    else:
        del os.environ["PYTHONPATH"]
    sys.path.insert(0, _HOME)
    try:
        from lightkeeper.worker_server import attach  # noqa: PLC0415  needs _HOME

        attach()
    except SystemExit as exc:  # the monitor refuses this host: avoid a traceback
        os._exit(int(exc.code or 0))
    finally:
        sys.path.remove(_HOME)
    ours = sys.modules.pop(__name__)
    with contextlib.suppress(ImportError):
        importlib.import_module(__name__)
    sys.modules.setdefault(__name__, ours)


_begin()
