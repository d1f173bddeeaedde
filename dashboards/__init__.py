"""Dashboards: what Grafana shows and what Prometheus scrapes, computes and alerts on.

Belongs here: six dashboards as typed Python (`fleet` for the wall, `drill_downs` for what it links
to; `panels` and `selectors` are shared), the JSON rendered from them (`grafana/`, committed: it is
what people import), Prometheus rules, alerts and scrape configuration (`prometheus/`), reading that
JSON and running its queries on a Prometheus (`committed`), and the push into a running Grafana
(`publish`). Does not belong here: any metric's computation. Imports no other package of ours; tests
check that the code exports every metric named in a panel or rule, and run each panel's query on a
real Prometheus.

    python -m lightkeeper.dashboards render     # write the JSON again (needs the development extra)
    python -m lightkeeper.dashboards check      # does the committed JSON match the Python?
    lightkeeper dashboards push --url http://grafana:3000 --token-file F
"""

if __name__ != "lightkeeper.dashboards":
    raise ImportError(f"`{__name__}` is `lightkeeper.dashboards` now", name=__name__)
