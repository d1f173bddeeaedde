"""Puts the routes together."""

from __future__ import annotations

from pathlib import Path

from flask import Flask, Response

from monitor.app.answers import BODY_MAX_BYTES, refuse
from monitor.app.auditing import auditing
from monitor.app.changing import changing
from monitor.app.desk import Desk, open_desk
from monitor.app.incident_pages import incident_pages
from monitor.app.paging import open_frames, paging
from monitor.app.passing import passing
from monitor.app.reading import reading
from monitor.app.ruling import policy, ruling

_STATIC = Path(__file__).parent / "static"


def create_app(desk: Desk) -> Flask:
    """The monitor's WSGI application."""
    app = Flask("monitor", static_folder=str(_STATIC), static_url_path="/static")
    app.config["MAX_CONTENT_LENGTH"] = BODY_MAX_BYTES
    open_desk(app, desk)
    open_frames(app, desk)
    for routes in (
        reading,
        paging,
        auditing,
        incident_pages,
        changing,
        passing,
        policy,
        ruling,
    ):
        app.register_blueprint(routes)

    @app.after_request
    def harden(response: Response) -> Response:
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Content-Security-Policy"] = "default-src 'self'; frame-ancestors 'none'"
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    app.register_error_handler(Exception, refuse)
    return app
