"""A trainer in a process of its own that takes a step on command."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar


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
