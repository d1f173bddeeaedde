"""A server that answers as Grafana's HTTP API documents, for the push.

After https://grafana.com/docs/grafana/latest/developers/http_api/ (folder, dashboard, dashboard
versions) for Grafana 10 to 13: routes by uid only (numeric ids answer 404, as they do from 13.0
on), titles of folders unique in their place, optimistic locking by version, dashboards read from
files that refuse to be saved. `rewrites` stands in for a Grafana that stores a dashboard in
other words than it was sent in.
"""

import json
import re
from urllib.parse import urlsplit

from tests.http_server import FakeServer

EDITOR, VIEWER = "secret", "only-reads"
_CHANGED = "has been changed by someone else"


class GrafanaServer(FakeServer):
    """`script` holds answers to give first: (status, body)."""

    def __init__(self, prefix=""):
        self.folders = {}  # uid -> {uid, title, parentUid}
        self.boards = {}  # uid -> {dashboard, folderUid, provisioned, versions: [...]}
        self.requests, self.script, self.rewrites = [], [], None
        self.prefix = prefix
        super().__init__()
        self.url += prefix

    def serve(self, handler, method, path, body):
        path = urlsplit(path).path.removeprefix(self.prefix)
        self.requests.append((method, path))
        status, answer = self.handle(method, path, handler.headers, json.loads(body or "null"))
        text = answer if isinstance(answer, str) else json.dumps(answer)
        handler.reply(status, "application/json", text.encode())

    # -- what a person does in it ----------------------------------------------------------------

    def add_folder(self, uid, title, parent=None):
        self.folders[uid] = {"uid": uid, "title": title, "parentUid": parent}

    def add_board(self, board, folder="", provisioned=None):
        """As somebody saved it, or (`provisioned`: its file) as read from a file."""
        kept = {**board, "id": len(self.boards) + 1, "version": 1}
        history = [{"version": 1, "message": ""}]
        self.boards[board["uid"]] = {
            "dashboard": kept, "folderUid": folder, "provisioned": provisioned,
            "versions": history,
        }  # fmt: skip

    def edit(self, uid, **changes):
        """By hand, in the browser."""
        kept = self.boards[uid]
        kept["dashboard"] = {**kept["dashboard"], **changes}
        self._count(kept, "")

    def versions(self, uid):
        return [version["version"] for version in self.boards[uid]["versions"]]

    def writes(self):
        return [path for command, path in self.requests if command != "GET"]

    # -- the API ---------------------------------------------------------------------------------

    def handle(self, command, path, headers, body):
        if self.script:
            return self.script.pop(0)
        token = (headers["Authorization"] or "").removeprefix("Bearer ")
        if token not in {EDITOR, VIEWER}:
            return 401, {"message": "Invalid API key"}
        if command != "GET" and token != EDITOR:
            return 403, {"message": "You'll need additional permissions to perform this action"}
        routes = {
            ("GET", r"/api/folders"): lambda: (200, self._top_folders()),
            ("POST", r"/api/folders"): lambda: self._create_folder(body),
            ("GET", r"/api/folders/([^/]+)"): self._folder,
            ("GET", r"/api/dashboards/uid/([^/]+)"): self._board,
            ("GET", r"/api/dashboards/uid/([^/]+)/versions"): self._versions,
            ("POST", r"/api/dashboards/db"): lambda: self._save(body),
        }
        for (method, pattern), answer in routes.items():
            match = re.fullmatch(pattern, path)
            if match and method == command:
                return answer(*match.groups())
        return 404, {"message": "Not found"}  # numeric ids among others

    def _top_folders(self):
        return [folder for folder in self.folders.values() if folder["parentUid"] is None]

    def _folder(self, uid):
        if uid in self.folders:
            return 200, self.folders[uid]
        return 404, {"message": "folder not found", "status": "not-found"}

    def _create_folder(self, body):
        if body["uid"] in self.folders:
            return 412, {"message": f"The folder {_CHANGED}", "status": "version-mismatch"}
        if any(folder["title"] == body["title"] for folder in self._top_folders()):
            return 409, {"message": "a folder with the same name already exists in the current "
                                    "location"}  # fmt: skip
        self.add_folder(body["uid"], body["title"])
        return 200, self.folders[body["uid"]]

    def _board(self, uid):
        kept = self.boards.get(uid)
        if kept is None:
            return 404, {"message": "Dashboard not found"}
        return 200, {
            "dashboard": kept["dashboard"],
            "meta": {
                "url": self._address(uid),
                "folderUid": kept["folderUid"],
                "version": kept["dashboard"]["version"],
                "provisioned": kept["provisioned"] is not None,
                "provisionedExternalId": kept["provisioned"] or "",
            },
        }

    def _versions(self, uid):
        kept = self.boards.get(uid)
        if kept is None:
            return 404, {"message": "Dashboard not found"}
        newest_first = kept["versions"][::-1]
        return 200, {"continueToken": "", "versions": newest_first[:1]}

    def _save(self, body):
        board, folder = body["dashboard"], body.get("folderUid", "")
        if not board.get("title"):
            return 400, {"message": "Dashboard title cannot be empty", "status": "empty-name"}
        if folder and folder not in self.folders:
            return 400, {"message": "folder not found", "status": "not-found"}
        kept = self.boards.get(board["uid"])
        if kept is not None and kept["provisioned"] is not None:
            return 400, {"message": "Cannot save provisioned dashboard"}
        looked_at = None if kept is None else kept["dashboard"]["version"]
        if looked_at not in {None, board.get("version")} and not body.get("overwrite"):
            return 412, {"message": f"The dashboard {_CHANGED}", "status": "version-mismatch"}
        if self._title_taken(board, folder):
            return 412, {"message": "A dashboard with the same name in the folder already exists",
                         "status": "name-exists"}  # fmt: skip
        if kept is None:
            fresh = {"dashboard": {"id": len(self.boards) + 1, "version": 0}, "versions": [],
                     "provisioned": None}  # fmt: skip
            kept = self.boards[board["uid"]] = fresh
        stored = self.rewrites(board) if self.rewrites else board
        kept["folderUid"] = folder
        number = {key: kept["dashboard"][key] for key in ("id", "version")}
        kept["dashboard"] = {**stored, **number}
        self._count(kept, body.get("message", ""))
        return 200, {
            "status": "success", "uid": board["uid"], "url": self._address(board["uid"]),
            "version": kept["dashboard"]["version"], "id": kept["dashboard"]["id"],
            "folderUid": folder,
        }  # fmt: skip

    def _count(self, kept, message):
        kept["dashboard"]["version"] += 1
        version = {"version": kept["dashboard"]["version"], "message": message}
        kept["versions"].append(version)

    def _title_taken(self, board, folder):
        return any(
            uid != board["uid"]
            and kept["folderUid"] == folder
            and kept["dashboard"]["title"] == board["title"]
            for uid, kept in self.boards.items()
        )

    def _address(self, uid):
        return f"{self.prefix}/d/{uid}/of-that-name"
