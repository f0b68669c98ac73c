"""The grader process: reads pairs of answers from its standard input, writes verdicts to its output.

Started by `r3env.grading.grader` as `python -m r3env.grading.child`. It speaks JSON in length-prefixed messages, one
request at a time. It computes nothing itself: it keeps the imported libraries warm and forks a worker that grades. An
overdue worker is killed, and the next one is there within milliseconds instead of the seconds that SymPy takes to load.
"""

import gc
import json
import os
import signal
import time
from multiprocessing.connection import Connection, Pipe, wait

from r3env.grading.worker import Message, serve


def main() -> None:
    """Announces itself, then relays requests to a worker until the parent goes away."""
    requests = Connection(0, writable=False)
    # Nothing that a library prints may get between the messages: they leave by a descriptor of their own.
    replies = Connection(os.dup(1), readable=False)
    os.dup2(2, 1)
    try:
        from r3env.grading.equivalence import compare

        compare("\\frac{1}{2}", "\\sqrt{x}+1")  # else the first answer would pay for the parser's tables
    except Exception as error:
        _send(replies, {"failed": f"{type(error).__name__}: {error}"})
        return
    gc.freeze()  # the workers share these pages for as long as nobody writes to them
    _send(replies, {"ready": True})
    worker = _Worker((requests, replies))
    try:
        while True:
            reply = worker.answer(requests)
            if reply is None:
                return
            if "died" in reply or "timeout" in reply or reply.get("retire"):
                worker.kill()
                worker = _Worker((requests, replies))
                reply["restarted"] = True
            _send(replies, reply)
    except BrokenPipeError:
        return
    finally:
        worker.kill()


class _Worker:
    """A forked process that grades, and this side of the pipes to it."""

    def __init__(self, inherited: tuple[Connection, ...]) -> None:
        requests, self._requests = Pipe(duplex=False)
        self._replies, replies = Pipe(duplex=False)
        self._pid = os.fork()
        if self._pid == 0:
            try:
                # A worker that held the other ends would keep its own pipes, and its parent's, open for ever.
                for connection in (*inherited, self._requests, self._replies):
                    connection.close()
                serve(requests, replies)
            finally:
                os._exit(0)
        requests.close()
        replies.close()

    def answer(self, parent: Connection) -> Message | None:
        """Passes the parent's next request on and returns the reply, or None when the parent is gone."""
        try:
            request = parent.recv_bytes()
        except EOFError:
            return None
        timeout_s = json.loads(request)[2]
        due = time.monotonic() + timeout_s
        try:
            self._requests.send_bytes(request)
            ready = wait([self._replies, parent], max(0.0, due - time.monotonic()))
            if self._replies in ready:
                reply: Message = json.loads(self._replies.recv_bytes())
                return reply
        except (EOFError, OSError):
            # The worker also limits itself; on a busy machine that may be noticed first.
            return {"timeout": True} if time.monotonic() >= due else {"died": True}
        # One request is under way at a time, so the only news from the parent is that it has gone.
        return None if ready else {"timeout": True}

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._requests.close()
        self._replies.close()


def _send(replies: Connection, message: Message) -> None:
    replies.send_bytes(json.dumps(message).encode())


if __name__ == "__main__":
    main()
