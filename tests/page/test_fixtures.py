"""What the tests of pages stand on: views, a server and a browser that really judge."""

from __future__ import annotations

import pytest

from tests.monitor.fakes import wait_until
from tests.page.browsing import Opened, assert_accessible, assert_fits
from tests.page.views import crowd

pytestmark = pytest.mark.integration


def test_an_error_a_fault_of_accessibility_and_a_page_too_wide_are_noticed(
    stage, browser, windows
) -> None:
    pages = Opened(browser, windows)
    page = pages.open(stage(crowd(1, 1)).url + "/incidents", width=390)
    assert_fits(page)
    page.evaluate(
        """() => {
          setTimeout(() => { throw new Error("a bug"); }, 0);
          const picture = document.createElement("img");
          picture.width = 2000; picture.src = "/static/icon.svg";
          document.querySelector("main").append(picture);
        }"""
    )
    with pytest.raises(AssertionError, match="img"):
        assert_fits(page)
    with pytest.raises(AssertionError, match="image-alt"):
        assert_accessible(page)
    wait_until(lambda: page.evaluate("1") and pages.errors, what="the error is noticed")
    pages.close()
    assert pages.errors == ["a bug"]
