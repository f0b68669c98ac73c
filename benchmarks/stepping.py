"""How well one env runner's episodes step at the same time, and what a few slow graders cost the others.

    python -m benchmarks.stepping --episodes 4096 --turns 4

The runner and the environments are real; the engine answers after a fixed time a batch, so that what remains is the
stepping. A share of the answers is graded by something that takes long without computing, as a judge behind a
network does. Each line is compared with the same episodes graded at once.
"""

import argparse
import functools
import itertools
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from rich.console import Console
from rich.table import Table

from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.rollout import episodes
from algorithms.rollout.engines.base import Completion, Engine, FinishReason, GenerationRequest
from algorithms.rollout.types import Prompt, Request, Sampling, Split
from r3env.core import Query, Reason, Verdict, VerifiableEnv


@dataclass
class Clock:
    """Events while episodes ran.

    Args:
        grading: verdicts that are being reached at this moment.
        most_grading: the most of them at once.
        generating_s: seconds in which the engine worked.
    """

    grading: int = 0
    most_grading: int = 0
    generating_s: float = 0.0


class WaitingEngine(Engine):
    """Answers every request of a batch with the same few tokens, after `batch_s`."""

    continuous_batching = False

    def __init__(self, tokens: Sequence[int], batch_s: float, clock: Clock) -> None:
        self.batch_s, self.clock = batch_s, clock
        array = np.array(tokens, np.int32)
        self.completion = Completion(array, np.zeros(len(array), np.float32), FinishReason.STOP)
        self.keys: list[int] = []

    @property
    def unfinished(self) -> int:
        """The requests of the next batch."""
        return len(self.keys)

    def submit(self, key: int, request: GenerationRequest) -> None:
        """Put it in the next batch."""
        self.keys.append(key)

    def step(self) -> list[tuple[int, Completion]]:
        """Return the same completion for all."""
        time.sleep(self.batch_s)
        self.clock.generating_s += self.batch_s
        answered, self.keys = self.keys, []
        return [(key, self.completion) for key in answered]

    def abort(self, keys: Collection[int]) -> None:
        """Leave them out."""
        self.keys = [key for key in self.keys if key not in keys]


class SlowlyGraded(VerifiableEnv):
    """Rejects every answer, in a share of the cases after `slow_s`."""

    turns_taken = itertools.count()

    def __init__(self, clock: Clock, slow_share: float, slow_s: float, **arguments: Any) -> None:
        super().__init__(reflection_guidance="2+2", **arguments)
        self.clock, self.slow_s = clock, slow_s
        self.every = round(1 / slow_share) if slow_share else 0

    def load_queries(self) -> list[Query]:
        """Return one query for all."""
        return [Query("q", "1+1", "2")]

    def verify(self, query: Query, response: str) -> Verdict:
        """Reject the answer; wait at a fixed share of them."""
        with _lock:
            self.clock.grading += 1
            self.clock.most_grading = max(self.clock.most_grading, self.clock.grading)
        if self.every and next(self.turns_taken) % self.every == 0:
            time.sleep(self.slow_s)
        with _lock:
            self.clock.grading -= 1
        return Verdict(False, Reason.DIFFERENT)


_lock = threading.Lock()


def rollout(arguments: argparse.Namespace, slow_share: float, threads: int) -> tuple[float, Clock]:
    """Run all episodes; return their seconds, and the events."""
    clock = Clock()
    make: Callable[[], gymnasium.Env[str, str]] = functools.partial(
        SlowlyGraded, clock, slow_share, arguments.slow_s, max_turns=arguments.turns
    )
    tokenizer = load_tokenizer(resolve_model("embedded:tiny"), None, False)
    engine = WaitingEngine(tokenizer.encode("3"), arguments.batch_s, clock)
    episodes.STEPPING_THREADS = threads
    runner = episodes.EpisodeRunner(engine, tokenizer, dict.fromkeys(Split, make))
    requests = [Request(i, Prompt("q"), i, i, Sampling()) for i in range(arguments.episodes)]
    runner.rollout(requests)  # makes the environments
    clock.generating_s, clock.most_grading = 0.0, 0
    started = time.perf_counter()
    rollouts = runner.rollout(requests)
    seconds = time.perf_counter() - started
    runner.close()
    if any(rollout.error or len(rollout.turns) != arguments.turns for rollout in rollouts):
        raise RuntimeError(f"episodes failed: {next(r.error for r in rollouts if r.error)}")
    return seconds, clock


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=2048)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--batch-s", type=float, default=0.05, help="seconds that the engine takes for a batch")
    parser.add_argument("--slow-share", type=float, default=0.05, help="share of answers that are graded slowly")
    parser.add_argument("--slow-s", type=float, default=0.2, help="seconds that grading one of them takes")
    parser.add_argument(
        "--threads", default=f"{episodes.STEPPING_THREADS}", help="stepping threads of the runner, such as 16,256"
    )
    arguments = parser.parse_args()
    table = Table(title=f"{arguments.episodes} episodes of {arguments.turns} turns in one runner", title_justify="left")
    for name in ("threads", "slow answers", "seconds", "of them stepping", "graded at once", "ratio"):
        table.add_column(name, justify="right")
    for threads in map(int, arguments.threads.split(",")):
        baseline = 0.0
        for share in (0.0, arguments.slow_share):
            seconds, clock = rollout(arguments, share, threads)
            baseline = baseline or seconds
            stepping = seconds - clock.generating_s
            figures = (f"{share:.0%}", f"{seconds:.2f}", f"{stepping:.2f}", str(clock.most_grading))
            table.add_row(str(threads), *figures, f"{seconds / baseline:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
