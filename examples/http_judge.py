r"""A reward from a judge behind HTTP, asked through one pool of connections that stays open.

    python -m examples.http_judge 8009 &       # a judge to try it with; 8009 0.3: an answer takes it 0.3 seconds
    python -m algorithms.grpo environment.id=r3env/Function-v0 environment.data=embedded:train \
        environment.options.reward=examples.http_judge:HttpJudge env_runners.reward_actor.replicas=1

An actor makes the class once. Its call is `async`: all responses of a step wait for the judge at the same time, while
the engine generates the others. A call that raises is repeated (`env_runners.reward_actor.retries`); one may take
`environment.grading_timeout_s`, 5 seconds unless you set it.
"""

import json
import re
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import aiohttp


class HttpJudge:
    """Asks the judge at `url`; derive one of your own with another."""

    url = "http://127.0.0.1:8009"

    def __init__(self) -> None:
        self.session: aiohttp.ClientSession | None = None

    async def __call__(self, problem: str, response: str, answer: str) -> float:
        """Return the judge's score of a response."""
        asked = {"problem": problem, "response": response, "reference": answer}
        async with self.connect().post("/judge", json=asked) as reply:
            return float((await reply.json(content_type=None))["score"])

    def connect(self) -> aiohttp.ClientSession:
        """Return the pool of connections; it belongs to the loop that runs the calls."""
        if self.session is None:
            # aiohttp's own limits are 5 minutes and 100 connections; the actor has its own.
            connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
            self.session = aiohttp.ClientSession(self.url, connector=connector, timeout=timeout, raise_for_status=True)
        return self.session


class Judge(BaseHTTPRequestHandler):
    """Scores a response: 1 if its last number is the reference, 0.1 if it has another number."""

    protocol_version = "HTTP/1.1"  # connections stay open
    takes_s = 0.0

    def do_POST(self) -> None:  # noqa: N802  the name is http.server's
        """Answer a request."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        numbers = re.findall(r"-?\d+", asked["response"])
        score = 1.0 if numbers[-1:] == [asked["reference"]] else 0.1 if numbers else 0.0
        time.sleep(self.takes_s)
        body = json.dumps({"score": score}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


class JudgeServer(ThreadingHTTPServer):
    """The judge; as many may wait for it as a step has responses."""

    request_queue_size = 256
    daemon_threads = True


if __name__ == "__main__":
    Judge.takes_s = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    JudgeServer(("127.0.0.1", int(sys.argv[1])), Judge).serve_forever()
