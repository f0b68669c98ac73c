"""The chat endpoint as a server: what clients may hold, before and after they have shown a key."""

import asyncio
import itertools
import json
import resource
import socket
import subprocess
import sys
import threading
from urllib.parse import urlsplit

import pytest

from r3env.agents import http_server
from r3env.agents.http_server import Limits
from r3env.agents.server import Endpoint
from r3env.agents.session import Finished, Session, SessionClosed
from r3env.agents.types import Completion, Policy
from r3env.envs.agent import AgentEnv
from tests.hostile_clients import attack

SHORT = Limits(head_s=0.3, body_s=0.3, body_bytes=1000)
WAITING_S = 300  # what a test waits for at most, whatever the limits
CHAT = "/chat/completions"
BODY = json.dumps({"messages": [{"role": "user", "content": "1+2"}]}).encode()


def answer_all(session):
    """Answer every request with "3"."""
    for number in itertools.count():
        try:
            event = session.next()
        except SessionClosed:
            return
        if not isinstance(event, Finished):
            event.answer(Completion("3"), number)


class Served:
    """A session that an endpoint of its own serves."""

    def __init__(self, limits, answers=True):
        self.endpoint, self.session = Endpoint(limits), Session(Policy())
        self.url = self.endpoint.open(self.session)
        self.port, self.path = urlsplit(self.url).port, urlsplit(self.url).path
        if answers:
            threading.Thread(target=answer_all, args=(self.session,), daemon=True).start()

    def connect(self, data=b""):
        client = socket.create_connection(("127.0.0.1", self.port), timeout=WAITING_S)
        client.sendall(data)
        return client

    def request(self, path=CHAT, body=BODY, **headers):
        fields = {"Host": "localhost", "Content_Length": len(body)} | headers
        lines = [f"POST {self.path}{path} HTTP/1.1", *(f"{k.replace('_', '-')}: {v}" for k, v in fields.items())]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    def asks(self, client):
        """Send a request that has the key; returns the status."""
        client.sendall(self.request())
        return status(client.recv(1 << 16))


def status(response):
    version, _, rest = response.partition(b" ")
    assert version == b"HTTP/1.1", response
    return int(rest[:3])


def everything(client):
    """What the endpoint sends until it closes the connection."""
    with client:
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


@pytest.fixture(scope="module")
def short():
    served = Served(SHORT)
    yield served
    served.endpoint.close(served.url)


@pytest.fixture(scope="module")
def small():
    served = Served(Limits(body_bytes=1000))
    yield served
    served.endpoint.close(served.url)


@pytest.fixture
def serve():
    opened = []

    def serve(limits, **arguments):
        opened.append(Served(limits, **arguments))
        return opened[-1]

    yield serve
    for served in opened:
        served.endpoint.close(served.url)


def test_the_key_is_looked_up_before_the_body_is_read(serve):
    served = serve(Limits())
    wrong = served.request(body=b"", Content_Length=900, Expect="100-continue").replace(served.path.encode(), b"/x/v1")
    assert status(served.connect(wrong).recv(1 << 16)) == 410
    client = served.connect(served.request(body=b"", Content_Length=len(BODY), Expect="100-continue"))
    assert client.recv(1 << 16).startswith(b"HTTP/1.1 100")
    client.sendall(BODY)
    assert status(client.recv(1 << 16)) == 200


@pytest.mark.parametrize("sent", ["", "GET / HTTP/1.1\r\nHost: x", "BODY", "CHUNK"])
def test_what_does_not_arrive_in_time_ends_the_connection(short, sent):
    half = {
        "BODY": short.request(body=b"{", Content_Length=100),
        "CHUNK": short.request(body=b"5\r\nab", Transfer_Encoding="chunked"),
    }
    assert status(everything(short.connect(half.get(sent, sent.encode())))) == 408


def test_an_idle_connection_is_closed_without_a_response(serve):
    served = serve(Limits(idle_s=2.0))
    client = served.connect()
    assert [served.asks(client), served.asks(client)] == [200, 200]
    assert everything(client) == b""


@pytest.mark.parametrize(
    ("expected", "sent"),
    [
        (431, "GET / HTTP/1.1\r\nHost: " + "x" * 40_000),
        (431, "a" * 40_000),
        (413, "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n"),
        (413, "POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + "x" * 1001),
        (400, "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: " + "9" * 5000 + "\r\n\r\n"),
        (400, "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"),
        (400, "POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        (400, "POST {path} HTTP/1.1\r\n\r\n"),
        (400, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"),
        (400, "\0" * 100 + "\r\n\r\n"),
        (501, "POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n"),
        (404, "DELETE {path} HTTP/1.1\r\nHost: x\r\n\r\n"),
        (410, "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"),
    ],
)
def test_what_is_too_large_or_no_request_gets_its_status(small, expected, sent):
    sent = sent.replace("{path}", small.path + CHAT).encode("latin-1")
    assert status(everything(small.connect(sent))) == expected
    assert small.asks(small.connect()) == 200


def test_a_client_that_closed_its_side_gets_its_response(small):
    client = small.connect(small.request(Connection="close"))
    client.shutdown(socket.SHUT_WR)
    assert status(everything(client)) == 200


def test_beyond_the_limit_the_oldest_stranger_gives_way(serve):
    served = serve(Limits(strangers=8))
    silent = [served.connect() for _ in range(8)]
    assert served.asks(served.connect()) == 200
    assert status(everything(silent[0])) == 429
    silent[7].sendall(served.request())
    assert status(silent[7].recv(1 << 16)) == 200


def test_beyond_the_limit_the_longest_idle_gives_way_and_without_one_the_next_is_refused(serve):
    served = serve(Limits(known=2, head_s=2.0), answers=False)
    clients = [served.connect(served.request()) for _ in range(2)]
    requests = [served.session.next(), served.session.next()]
    refused = everything(served.connect(served.request()))
    assert status(refused) == 503 and b"Retry-After: 1\r\n" in refused
    for request in requests:
        request.answer(Completion("3"), 0)
    assert [status(client.recv(1 << 16)) for client in clients] == [200, 200]
    third = served.connect(served.request())
    served.session.next().answer(Completion("3"), 0)
    assert status(third.recv(1 << 16)) == 200
    assert sorted(_closed(client) for client in clients) == [False, True]


def _closed(client):
    client.settimeout(0.2)
    try:
        return client.recv(1) == b""
    except TimeoutError:
        return False


def test_what_arrived_while_this_process_was_stopped_is_read():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.sendall(b"late")
    assert asyncio.run(http_server._receive(ours, until=0.0, size=10)) == b"late"
    with pytest.raises(TimeoutError):
        asyncio.run(http_server._receive(ours, until=0.0, size=10))


def test_strangers_hold_no_bodies_and_no_threads(serve):
    served = serve(Limits())
    wrong = served.request(body=b"", Content_Length=60 << 20).replace(served.path.encode(), b"/x/v1")
    before, threads = _memory(), set(threading.enumerate())
    clients = []
    for _ in range(200):
        clients.append(served.connect(wrong))
        clients[-1].settimeout(0.5)
        try:
            clients[-1].sendall(bytes(1 << 20))
        except OSError:
            pass  # it reads no more
    assert set(threading.enumerate()) <= threads
    assert _memory() < before + (64 << 20)
    assert served.asks(served.connect()) == 200


def _memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


# -- 500 connections ---------------------------------------------------------------------------------------------------


async def honest(served, requests):
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    statuses = []
    for _ in range(requests):
        writer.write(served.request())
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        statuses.append(status(head))
        await asyncio.sleep(0.01)
    writer.close()
    return statuses


def test_of_500_connections_half_are_hostile_and_no_request_of_the_others_is_lost(serve):
    served = serve(Limits())
    threads = set(threading.enumerate())

    async def both():
        attackers = asyncio.create_task(attack(served.port, 250))
        await asyncio.sleep(0.5)
        results = await asyncio.gather(*(honest(served, 4) for _ in range(250)))
        attackers.cancel()
        return list(itertools.chain(*results))

    assert asyncio.run(asyncio.wait_for(both(), WAITING_S)) == [200] * 1000
    assert set(threading.enumerate()) <= threads


# -- Files -------------------------------------------------------------------------------------------------------------

CHILD = """
import resource, sys, threading
from tests.r3env.test_endpoint import Limits, Served

served = Served(Limits(strangers=1000, known=1000))
served.session.start(threading.Event().wait)  # an agent that never ends
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
print(served.port, served.path, flush=True)
sys.stdin.read()
"""


def test_a_process_without_files_serves_on_and_ends_in_silence():
    command = [sys.executable, "-c", CHILD]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, **pipes) as child:
        port, path = child.stdout.readline().split()
        served = Served.__new__(Served)
        served.port, served.path = int(port), path
        strangers = [served.connect() for _ in range(200)]
        assert served.asks(served.connect()) == 200
        _, errors = child.communicate(timeout=WAITING_S)
        assert len(strangers) == 200 and child.returncode == 0
        assert errors == "the agents have more connections than this process may have files open; fix: ulimit -n\n"


def test_too_few_files_for_the_agents_are_refused_with_the_number_that_is_needed():
    agents = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    env = AgentEnv(agent=print)
    env.check_concurrency(1)
    with pytest.raises(ValueError, match=rf"{agents} agents at once need {256 + 3 * agents} open files.*ulimit -n"):
        env.check_concurrency(agents)
