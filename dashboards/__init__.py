"""Dashboards: what Grafana shows and what Prometheus scrapes, computes and alerts on.

Belongs here: six dashboards as typed Python (`fleet` for the wall, `drill_downs` for where it
leads; what they share in `panels`, `selectors`), the JSON rendered from them
(`grafana/`, committed: it is what people import), Prometheus rules, alerts and scrape
configuration (`prometheus/`), that JSON read and asked of a Prometheus (`committed`), and the push
into a running Grafana (`publish`). Does not belong here: any metric's computation. Imports nothing
of ours; tests check that every metric named in a panel or rule is one that the code exports, and
ask a real Prometheus each panel's query.

    python -m dashboards render     # write the JSON anew (needs the development extra)
    python -m dashboards check      # is the committed JSON what the Python says?
    lightkeeper dashboards push --url http://grafana:3000 --token-file F
"""
