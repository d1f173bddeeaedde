"""The Python API on the page is that of the code."""

from lightkeeper.worker_server.rank.reporter import Reporter
from tests.docs import python_api


def test_the_page_has_the_api_of_the_code() -> None:
    assert python_api.PAGE.read_text() == python_api.text(), "python -m tests.docs.python_api"


def test_no_public_method_of_the_reporter_is_left_out() -> None:
    of_hooks = {"enter_phase", "leave_phase", "enter_waiting_phase", "count_step", "step_locally",
                "note_loss", "lose", "disable", "from_source", "url"}  # fmt: skip
    public = {name for name in dir(Reporter) if not name.startswith("_")}
    listed = {name.partition(".")[2] for name, _ in python_api.CALLS}
    assert public - of_hooks == listed - {"attach", "tag", "count"}
