"""Pictures of the dashboards without a Grafana: `make dashboard-pictures`.

`answers` asks a Prometheus every query of a dashboard, as Grafana would. `page.jsx` draws the
answers with Grafana's own libraries from npm: units, thresholds, mappings, overrides and
transformations, stat, time series, table and bar gauge are Grafana's; state timelines and heat maps
are not in those libraries, and are drawn here after what Grafana documents of them.
"""
