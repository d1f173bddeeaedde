import pytest

pytest.register_assert_rewrite("tests.monitor.schedulers.conformance")
