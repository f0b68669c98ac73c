"""Four processes that play learners: a job runs in the first N of them as a process group of N."""

import multiprocessing
import pickle
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROCESSES = 4
TIMEOUT_S = 300.0
TESTS = str(Path(__file__).parents[1])


class Group:
    """Processes that stay, because importing torch takes them longer than any job."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "transformers", "algorithms.learner.update", "peft"])
        self.folder = tempfile.TemporaryDirectory()
        self.jobs = 0
        self.pipes, self.processes = [], []
        sys.path.append(TESTS)  # processes find this module by the name that pytest gave it
        for _ in range(PROCESSES):
            ours, theirs = context.Pipe()
            self.pipes.append(ours)
            self.processes.append(context.Process(target=_serve, args=(theirs,), daemon=True))
            self.processes[-1].start()
        sys.path.remove(TESTS)

    def run(self, world: int, job: Callable[..., Any], *arguments: Any, backend: str = "gloo") -> list[Any]:
        """What `job(rank, *arguments)` returns in each of `world` processes."""
        self.jobs += 1
        store = Path(self.folder.name) / f"rendezvous-{self.jobs}"
        for rank in range(world):
            self.pipes[rank].send((store, rank, world, backend, pickle.dumps((job, arguments))))
        answers = []
        for rank in range(world):
            if not self.pipes[rank].poll(TIMEOUT_S):
                raise TimeoutError(f"learner {rank} of {world} did not answer: do all run the same passes?")
            answers.append(self.pipes[rank].recv())
        failed = [error for error, _ in answers if error]
        if failed:
            raise RuntimeError(failed[0])
        return [result for _, result in answers]

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.terminate()
        self.folder.cleanup()


def _serve(pipe: Any) -> None:
    import torch

    torch.set_num_threads(1)
    while (message := pipe.recv()) is not None:
        store, rank, world, backend, pickled = message
        torch.distributed.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world)
        try:
            job, arguments = pickle.loads(pickled)
            answer = None, job(rank, *arguments)
        except BaseException:
            answer = traceback.format_exc(), None
        torch.distributed.destroy_process_group()
        pipe.send(answer)
