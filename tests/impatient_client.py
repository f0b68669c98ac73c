"""A client of an endpoint that does not wait for its answer."""

import json
import socket
import threading
import urllib.parse
from collections.abc import Sequence
from typing import Any


def ask_and_leave(base_url: str, model: str, messages: Sequence[Any], asked: threading.Event) -> None:
    """Ask for a completion, and close the connection once the question was seen (`asked`)."""
    url = urllib.parse.urlsplit(base_url)
    body = json.dumps({"model": model, "messages": messages}).encode()
    head = f"POST {url.path}/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((url.hostname, url.port)) as client:
        client.sendall(head.encode() + body)
        assert asked.wait(60)
