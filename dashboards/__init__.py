"""Dashboards: what Grafana shows and what Prometheus scrapes, computes and alerts on.

Belongs here: dashboards as typed Python (`fleet`), the JSON rendered from them (`grafana/`,
committed: it is what people import), Prometheus rules, alerts and scrape configuration
(`prometheus/`), and the push into a running Grafana (`publish`). Does not belong here: any
metric's computation. Imports nothing of ours; a test checks that every metric named in a panel
or rule is one that the code exports.

    python -m dashboards render     # write the JSON anew (needs the development extra)
    python -m dashboards check      # is the committed JSON what the Python says?
    python -m dashboards push --url http://grafana:3000 --token-file F
"""
