"""Steps of two trainers in turn, each in a process of its own, and their ratios."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar

import numpy as np


class Threaded(Protocol):
    """The settings of a trainer's process."""

    @property
    def threads(self) -> int:
        """Threads of torch."""


Task = TypeVar("Task", bound=Threaded)


@dataclass(frozen=True)
class Step:
    """Time and results of one training step.

    Args:
        seconds: from the command to the updated policy.
        generate_s: of these, sampling responses.
        reward_s: of these, rewards; 0 where they are part of sampling.
        samples: responses.
        tokens: of all responses.
        reward: mean over the responses.
        cpu_s: processor time of the trainer's process, all threads.
        details: further figures by name.
        lengths: tokens of each response.
        prompt_tokens: of the prompts, each counted once.
    """

    seconds: float
    generate_s: float
    reward_s: float
    samples: int
    tokens: int
    reward: float
    cpu_s: float = 0.0
    details: Mapping[str, float] = field(default_factory=dict)
    lengths: tuple[int, ...] = ()
    prompt_tokens: int = 0


class Stopped(Exception):
    """Raised when no further step is wanted."""


class Baton:
    """The trainer's end: waits for its turn, then reports its step."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self.connection = connection

    def wait(self) -> None:
        """Wait for the next command; raise `Stopped` when there will be none."""
        try:
            command = self.connection.recv()
        except EOFError as error:
            raise Stopped from error
        if command != "step":
            raise Stopped

    def give_back(self, step: Step | None) -> None:
        """Report that the step is done, or, with None, that the trainer is ready."""
        self.connection.send(step)


class Side:
    """The comparison's end of a trainer.

    Args:
        name: for messages.
        target: runs the trainer, in the new process; returns after `Stopped`.
        task: what it trains on.
    """

    def __init__(self, name: str, target: Callable[[Task, Baton], None], task: Task) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_run, args=(target, task, theirs))
        self.process.start()
        theirs.close()
        self._answer()

    def step(self) -> Step:
        """Let the trainer take one step."""
        self.connection.send("step")
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self.connection.close()
        self.process.join(timeout=60)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def _answer(self) -> Any:
        try:
            return self.connection.recv()
        except EOFError:
            raise RuntimeError(f"{self.name} ended, see its messages above") from None


def _run(target: Callable[[Task, Baton], None], task: Task, connection: "Connection[Any, Any]") -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the comparison closes its sides itself
    os.environ["OMP_NUM_THREADS"] = str(task.threads)
    import torch

    torch.set_num_threads(task.threads)
    try:
        target(task, Baton(connection))
    except Stopped:
        pass


NAMES = ("ours", "trl")


@dataclass
class Comparison:
    """The steps of both sides on one task.

    Args:
        warm_up: first steps of each side that are no part of the ratio.
        pairs: further steps that were taken in turn.
        steps: by side; the first one is this project's.
        arithmetic_s: seconds of a step's matrix products alone; 0: not timed.
    """

    warm_up: int
    pairs: int
    steps: dict[str, list[Step]] = field(default_factory=lambda: {name: [] for name in NAMES})
    arithmetic_s: float = 0.0

    @property
    def names(self) -> tuple[str, str]:
        """This project's side, and the other."""
        first, second = self.steps
        return first, second

    def paired(self, name: str) -> list[Step]:
        """Return the steps that count."""
        return self.steps[name][self.warm_up : self.warm_up + self.pairs]

    def elapsed(self, name: str) -> float:
        """Return the seconds that a side has trained for."""
        return sum(step.seconds for step in self.steps[name])

    def median(self, name: str, figure: str = "seconds") -> float:
        """Return the median of a figure over the steps that count."""
        return float(np.median([getattr(step, figure) for step in self.paired(name)]))

    @property
    def ratio(self) -> float:
        """Samples per second of this project over the other side's."""
        return self.median(self.names[1]) / self.median(self.names[0])

    @property
    def cpu_ratio(self) -> float:
        """The same of processor seconds; NaN where they were not measured."""
        own = self.median(self.names[0], "cpu_s")
        return self.median(self.names[1], "cpu_s") / own if own else float("nan")

    @property
    def spread(self) -> tuple[float, float]:
        """The 10th and 90th percentile of the ratio over pairs."""
        pairs = zip(*(self.paired(name) for name in self.names), strict=True)
        low, high = np.percentile([other.seconds / own.seconds for own, other in pairs], [10, 90])
        return float(low), float(high)

    @property
    def largest_ratio(self) -> float:
        """What `cpu_ratio` would be if this project only multiplied matrices; NaN where that was not timed."""
        return self.median(self.names[1], "cpu_s") / self.arithmetic_s if self.arithmetic_s else float("nan")

    @property
    def equal_share(self) -> float:
        """The share of this project's responses that are equal to another one of their step."""
        steps = self.paired(self.names[0])
        return sum(step.details.get("equal", 0.0) for step in steps) / max(1, sum(step.samples for step in steps))

    def learned(self, name: str, seconds: float, share: float = 0.2) -> float:
        """Return the mean reward of the steps in the last `share` of `seconds`, or of the one before; 0: none."""
        ends = np.cumsum([step.seconds for step in self.steps[name]])
        rewards = np.array([step.reward for step in self.steps[name]])
        last = int((ends <= seconds).sum())
        first = min(int((ends <= (1 - share) * seconds).sum()), last - 1)
        return float(rewards[first:last].mean()) if last else 0.0

    def learnt_by_step(self, name: str, count: int = 5) -> float:
        """Return the mean reward of the last `count` steps that both sides have taken."""
        common = min(len(steps) for steps in self.steps.values())
        return float(np.mean([step.reward for step in self.steps[name][max(0, common - count) : common]]))
