"""As much of S3, over HTTP, as pyarrow's client uses: objects, uploads in parts, lists. Nothing is signed or checked.

moto would do, but botocore asks for an older python-dateutil than the other packages.
"""

import re
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from tests.free_ports import free_ports

AWS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_EC2_METADATA_DISABLED": "true"}


@pytest.fixture
def server(monkeypatch):
    """A server that is up, for this process and those that it starts."""
    for name, value in AWS.items():
        monkeypatch.setenv(name, value)
    server = S3Server()
    server.start()
    yield server
    if not server.is_down:
        server.stop()


class S3Server:
    """Serves one bucket at 127.0.0.1; keeps its port and the objects over stops and starts."""

    def __init__(self):
        self.objects, self.parts, (self.port,) = {}, {}, free_ports(1)
        self.is_down = True
        # How many are still granted; below 0: all. A client tries again where a connection is lost.
        self.requests = -1

    @property
    def uri(self):
        there = f"scheme=http&endpoint_override=127.0.0.1:{self.port}&region=us-east-1"
        return f"s3://bucket/runs?{there}"

    def of_run(self, name):
        return self.uri.replace("?", f"/{name}?")

    def start(self):
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), type("Handler", (_Handler,), {"store": self}))
        self.is_down = False
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self):
        self.is_down = True  # for connections that are open
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body of an answer are written one after the other
    store: S3Server

    def log_message(self, *_):
        """Say nothing."""

    def handle_request(self):
        if self.store.is_down:
            self.close_connection = True
            return
        url = urlsplit(self.path)
        self.query = {key: values[0] for key, values in parse_qs(url.query, keep_blank_values=True).items()}
        self.bucket, _, self.key = unquote(url.path).lstrip("/").partition("/")
        self.body = self._read()
        if self.store.requests == 0:
            return self._xml("Error", "<Code>AccessDenied</Code><Message>not now</Message>", status=403)
        if self.bucket != "bucket":
            return self._xml("Error", "<Code>NoSuchBucket</Code><Message>no bucket</Message>", status=404)
        self.store.requests -= 1
        getattr(self, f"on_{self.command.lower()}")()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request

    def _read(self):
        """The body; pyarrow's client sends it in chunks, with a checksum behind them."""
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "aws-chunked" not in (self.headers.get("Content-Encoding") or ""):
            return body
        content = b""
        while True:
            head, _, rest = body.partition(b"\r\n")
            if not (size := int(head.split(b";")[0], 16)):
                return content
            content, body = content + rest[:size], rest[size + 2 :]

    def _answer(self, status, body=b"", **headers):
        self.send_response(status)
        length = headers.pop("length", len(body))
        for name, value in {"Content-Length": length, **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _xml(self, name, content, status=200):
        self._answer(status, f"<{name}>{content}</{name}>".encode(), Content_Type="application/xml")

    def _missing(self):
        self._xml("Error", "<Code>NoSuchKey</Code><Message>there is none</Message>", status=404)

    def on_head(self):
        found = self.store.objects.get(self.key)
        if self.key and found is None:
            return self._missing()
        self._answer(200, length=len(found or b""), Last_Modified=formatdate(usegmt=True), ETag='"x"')

    def on_get(self):
        if not self.key:
            return self._list()
        if self.key not in self.store.objects:
            return self._missing()
        body, status = self.store.objects[self.key], 200
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            body, status = body[int(wanted[1]) : int(wanted[2] or len(body)) + 1], 206
        self._answer(status, body, Last_Modified=formatdate(usegmt=True), ETag='"x"')

    def _list(self):
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter")
        keys = sorted(key for key in self.store.objects if key.startswith(prefix))
        folders = {prefix + key.removeprefix(prefix).split(delimiter)[0] for key in keys if delimiter}
        common = sorted(folder + delimiter for folder in folders - {*keys})
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.store.objects[key])}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>x</ETag></Contents>"
            for key in keys
            if not delimiter or key in folders
        ) + "".join(f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in common)
        self._xml("ListBucketResult", f"<KeyCount>{len(keys)}</KeyCount><IsTruncated>false</IsTruncated>{entries}")

    def on_put(self):
        if "uploadId" in self.query:
            self.store.parts[self.query["uploadId"]][int(self.query["partNumber"])] = self.body
        elif self.key:
            self.store.objects[self.key] = self.body
        self._answer(200, ETag='"x"')

    def on_post(self):
        if "uploads" in self.query:
            upload = str(len(self.store.parts))
            self.store.parts[upload] = {}
            return self._xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
        if "uploadId" in self.query:
            parts = self.store.parts[self.query["uploadId"]]
            self.store.objects[self.key] = b"".join(parts[number] for number in sorted(parts))
            return self._xml("CompleteMultipartUploadResult", f"<Key>{escape(self.key)}</Key><ETag>x</ETag>")
        for key in re.findall(rb"<Key>(.*?)</Key>", self.body):
            self.store.objects.pop(key.decode(), None)
        self._xml("DeleteResult", "")

    def on_delete(self):
        self.store.objects.pop(self.key, None)
        self._answer(204)
