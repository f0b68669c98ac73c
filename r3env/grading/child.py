"""The grader process, run as `python -m r3env.grading.child`: lets a worker compare answers, one pair at a time."""

import gc
import json
import resource
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

from r3env.child_processes.child import Message, Worker, open_pipes, send
from r3env.child_processes.process import ProcessDiedError, ProcessTamperedError, ProcessTimeoutError

MEMORY_LIMIT_BYTES = 512 << 20


def main() -> None:
    """Announce itself, then pass requests on to a worker until the parent goes away."""
    requests, replies = open_pipes()
    try:
        from r3env.grading.equivalence import compare

        compare("\\frac{1}{2}", "\\sqrt{x}+1")  # else the first answer would pay for the parser's tables
    except Exception as error:
        send(replies, {"failed": f"{type(error).__name__}: {str(error)[:1000]}"})
        return
    gc.freeze()  # the workers share these pages for as long as nobody writes to them
    send(replies, {"ready": True})
    worker = Worker(_compare, MEMORY_LIMIT_BYTES, (requests, replies))
    try:
        while True:
            # waits: for the next answer; it raises when the parent has ended
            gold, answer, timeout_s = json.loads(requests.recv_bytes())
            due = time.monotonic() + timeout_s
            restarted, again = False, True
            while again:
                was_used = worker.used
                reply = _reply(worker, [gold, answer], due, requests)
                # An earlier answer may have left the worker dead, or too large for this one.
                again = was_used and reply["retire"] and not reply.keys() & {"correct", "timeout"}
                if reply["retire"]:
                    worker.kill()
                    worker = Worker(_compare, MEMORY_LIMIT_BYTES, (requests, replies))
                    restarted = True
            send(replies, {**reply, "restarted": restarted})
    except (EOFError, BrokenPipeError):
        return
    finally:
        worker.kill()


def _reply(worker: Worker, pair: list[str], due: float, parent: Connection) -> Message:
    try:
        return worker.exchange(pair, due - time.monotonic(), parent)
    except ProcessTimeoutError:
        return {"timeout": True, "retire": True}
    except (ProcessDiedError, ProcessTamperedError):
        return {"retire": True}


def _compare(pair: Any) -> Message:
    from r3env.grading.equivalence import compare

    try:
        comparison = compare(*pair)
        reply: Message = {"correct": comparison.equal, "unread": comparison.unread}
    except Exception as error:
        reply = {"error": type(error).__name__}
    # A process that once grew large would run into its limit with some later, innocent answer.
    return {**reply, "retire": _peak_memory_bytes() > MEMORY_LIMIT_BYTES // 2}


def _peak_memory_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    main()
