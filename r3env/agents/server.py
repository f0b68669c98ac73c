"""The chat endpoint of a process: HTTP on localhost, one path for each episode."""

import errno
import functools
import json
import logging
import resource
import secrets
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from r3env.agents.errors import RequestError
from r3env.agents.protocol import MODEL, completion_body, model_body, models_body, read_request
from r3env.agents.session import Session
from r3env.agents.streaming import as_events

_LARGEST_BODY = 64 << 20
_BREATH_S = 1.0

_logger = logging.getLogger(__name__)


class Endpoint:
    """Serves any number of sessions under secret paths, in threads that end with the process."""

    def __init__(self) -> None:
        _allow_connections()
        self._sessions: dict[str, Session] = {}
        server = _Server(("127.0.0.1", 0), functools.partial(_Handler, self._sessions))
        self._address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, name="endpoint", daemon=True).start()

    def open(self, session: Session) -> str:
        """Serve a session; returns the base URL that its agent gets, which ends in `/v1`."""
        key = secrets.token_urlsafe(16)
        self._sessions[key] = session
        return f"{self._address}/{key}/v1"

    def close(self, base_url: str) -> None:
        """Serve a session no longer; an unknown one is no error."""
        session = self._sessions.pop(base_url.split("/")[-2], None)
        if session is not None:
            session.close()


_starting = threading.Lock()


def endpoint() -> Endpoint:
    """Return the endpoint of this process, started when it is first needed."""
    with _starting:
        return _only_endpoint()


@functools.lru_cache(1)
def _only_endpoint() -> Endpoint:
    return Endpoint()


def _allow_connections() -> None:
    """Let this process have as many files open as it may: each agent has a connection, which has two ends here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # hundreds of agents may connect at once

    def get_request(self) -> Any:
        """Accept a connection."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno == errno.EMFILE:
                _logger.warning(
                    "the agents have more connections than this process may have files open; fix: ulimit -n"
                )
                time.sleep(_BREATH_S)  # until one is closed
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that has gone away."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two packets

    def __init__(self, sessions: dict[str, Session], *arguments: Any) -> None:
        self._sessions = sessions
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """List the models."""
        self._answer(self._models)

    def do_POST(self) -> None:
        """Complete a chat."""
        self._answer(self._complete)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing."""

    def _answer(self, of: Any) -> None:
        try:
            size = self._size()
            body = self.rfile.read(size)
            _, key, *rest = self.path.partition("?")[0].split("/")
            session = self._sessions.get(key)
            if session is None:
                raise RequestError("there is no such episode, or it is over", status=410, code="episode_over")
            answer = of(session, "/".join(rest), body)
        except RequestError as error:
            self._send(error.status, error.body)
        else:
            self._send(200, answer)

    def _size(self) -> int:
        given = self.headers.get("Content-Length") or ("" if self.command == "POST" else "0")
        if not given.isdecimal() or int(given) > _LARGEST_BODY:
            self.close_connection = True
            raise RequestError(f"Content-Length must be a number of bytes up to {_LARGEST_BODY}", status=411)
        return int(given)

    def _models(self, session: Session, path: str, body: bytes) -> dict[str, Any]:
        if path == "v1/models":
            return models_body()
        if path == f"v1/models/{MODEL}":
            return model_body()
        raise _no_such(path)

    def _complete(self, session: Session, path: str, body: bytes) -> dict[str, Any] | bytes:
        if path != "v1/chat/completions":
            raise _no_such(path)
        request = read_request(body, session.policy)
        completion, number = session.ask(request)
        answer = completion_body(request, completion, number)
        return as_events(answer, usage=request.stream_usage) if request.stream else answer

    def _send(self, status: int, body: dict[str, Any] | bytes) -> None:
        """Send an object, or the events of a stream."""
        data, kind = (body, "text/event-stream") if isinstance(body, bytes) else (None, "application/json")
        data = json.dumps(body).encode() if data is None else data
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _no_such(path: str) -> RequestError:
    return RequestError(f"there is no /{path}; fix: /v1/chat/completions or /v1/models", status=404)
