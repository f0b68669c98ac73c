"""A server of wandb's, as far as one run needs it: it keeps the rows, and tells a resumed run of them."""

import gzip
import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

PROJECT = {"id": "p", "name": "r3-grpo", "entity": {"id": "e", "name": "us"}}


class WandbServer(ThreadingHTTPServer):
    """Attributes: `history`, the rows in which they came, and `summary`."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.history, self.summary, self.run = [], {}, None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def points(self, tag, at):
        return [(row[at], row[tag]) for row in self.history if tag in row]

    def bucket(self):
        return {
            "id": "b",
            "name": self.run,
            "displayName": self.run,
            "summaryMetrics": json.dumps(self.summary),
            "logLineCount": 0,
            "historyLineCount": len(self.history),
            "eventsLineCount": 0,
            "historyTail": json.dumps([json.dumps(row) for row in self.history[-1:]]),
            "eventsTail": "[]",
            "config": "{}",
            "tags": [],
            "notes": "",
            "wandbConfig": json.dumps({"t": 1}),  # there where a run has begun
            "project": PROJECT,
        }

    def answer(self, query, variables):
        if "RunResumeStatus" in query:
            return {"model": PROJECT | {"bucket": self.bucket() if self.run else None}}
        if "UpsertBucket" in query:
            inserted, self.run = self.run is None, variables.get("name") or self.run
            return {"upsertBucket": {"bucket": self.bucket(), "inserted": inserted}}
        if "CreateRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.url}/put"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        if "serverInfo" in query:
            return {"serverInfo": {"features": []}}
        viewer = {"id": "v", "entity": "us", "username": "us", "email": "", "flags": "{}", "teams": {"edges": []}}
        return {"viewer": viewer}

    def take(self, stream):
        for name, part in (stream.get("files") or {}).items():
            rows = [json.loads(line) for line in part["content"]]
            if name == "wandb-history.jsonl":
                self.history[part["offset"] :] = rows
            elif name == "wandb-summary.json":
                self.summary = rows[-1]


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        content, answer = self._body(), {}
        if self.path == "/graphql":
            asked = json.loads(content)
            answer = {"data": self.server.answer(asked["query"], asked.get("variables") or {})}
        elif self.path.endswith("/file_stream"):
            self.server.take(json.loads(content))
        self._reply(answer)

    def do_PUT(self):
        self._body()
        self._reply({})

    def do_GET(self):
        self._reply({})

    def _body(self):
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            content = gzip.decompress(content)
        return content

    def _reply(self, content):
        text = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        """Say nothing."""


@contextmanager
def serving():
    """Yield a server that runs."""
    server = WandbServer()
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
