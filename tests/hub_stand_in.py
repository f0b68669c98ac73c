"""A local stand-in for the Hub's HTTP API, as far as an upload goes: it keeps what is committed."""

import base64
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Hub:
    """What the server was told.

    Args:
        repositories: name → whether it was asked to be private; None: the owner's default.
        files: of the last state, name → path → content.
        commits: summaries, in order.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, bool | None] = {}
        self.files: dict[str, dict[str, bytes]] = {}
        self.commits: list[str] = []
        self.large: dict[str, bytes] = {}
        self.url = ""
        self.token = "hf_stand_in"


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def answer(self, content, status=200):
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def body(self):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def do_PUT(self):
            hub.large[self.path.rpartition("/")[2]] = self.body()
            self.answer({})

        def do_POST(self):
            body, path = self.body(), self.path.partition("?")[0]
            if path != "/api/validate-yaml" and self.headers.get("Authorization") != f"Bearer {hub.token}":
                self.answer({"error": "Invalid username or password."}, 401)
            elif path == "/api/repos/create":
                asked = json.loads(body)
                name = f"{asked.get('organization') or 'somebody'}/{asked['name']}"
                private = asked.get("private", {"private": True, "public": False}.get(asked.get("visibility")))
                hub.repositories.setdefault(name, private)
                self.answer({"url": f"{hub.url}/{name}", "name": name})
            elif path == "/api/validate-yaml":
                assert json.loads(body)["content"].startswith("---\n")
                self.answer({"errors": [], "warnings": []})
            elif "/preupload/" in path:
                files = json.loads(body)["files"]
                modes = [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if file["path"].endswith("safetensors") else "regular",
                        "shouldIgnore": False,
                    }
                    for file in files
                ]
                self.answer({"files": modes})
            elif path.endswith("/info/lfs/objects/batch"):
                objects = [
                    {**one, "actions": {"upload": {"href": f"{hub.url}/large/{one['oid']}"}}}
                    for one in json.loads(body)["objects"]
                ]
                self.answer({"transfer": "basic", "objects": objects})
            elif "/commit/" in path:
                self.commit(path.removeprefix("/api/models/").partition("/commit/")[0], body)
            else:
                self.answer({"error": f"no such address: {path}"}, 404)

        def commit(self, name, body):
            files = hub.files.setdefault(name, {})
            for line in body.splitlines():
                entry = json.loads(line)
                value = entry["value"]
                if entry["key"] == "header":
                    hub.commits.append(value["summary"])
                elif entry["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif entry["key"] == "lfsFile":
                    files[value["path"]] = hub.large[value["oid"]]
            oid = "0" * 40
            self.answer({"success": True, "commitOid": oid, "commitUrl": f"{hub.url}/{name}/commit/{oid}"})

    return Handler


@contextmanager
def running_hub():
    """Yield a Hub whose `url` answers until the block ends."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
