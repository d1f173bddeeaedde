import pytest

pytest.register_assert_rewrite("tests.monitor.act.schedulers.conformance")
