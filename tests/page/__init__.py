"""The monitor's pages in a real browser: Debian's chromium, driven by Playwright.

`serving` has the real Flask application on waitress over a view that the test chooses: of a fleet
of any size that is only written down (`crowd`), or of the simulated fleet with its faults and what
the pipeline decided of them (`Simulated`). `browsing` opens pages, and fails the test for any error
of JavaScript or of the Content-Security-Policy. The fixtures are in `conftest`.
"""
