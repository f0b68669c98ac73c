"""A checkout as a user has it, and Ray nodes to submit it to."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .ray_nodes import RayNode, start_node, surroundings

ROOT = Path(__file__).resolve().parents[2]
UPLOADED = ("algorithms", "r3env", "configs", ".gitignore", ".rayignore")

# A task beside the checkout's own files: an actor finds it only if the upload reached its node.
TASK = """
import os, pathlib, signal
import gymnasium
from r3env.core import Query, Reason, Verdict, VerifiableEnv


class Doubling(VerifiableEnv):
    def load_queries(self):
        return [Query(uid=str(n), problem=f"{n}+{n}", answer=str(2 * n)) for n in range(1, 10)]

    def verify(self, query, response):
        correct = str(query.answer) in response
        return Verdict(correct, Reason.EQUAL if correct else Reason.DIFFERENT)


class Deadly(Doubling):
    '''Kills its process once, in the step after the first.'''

    def __init__(self, run, **rest):
        super().__init__(**rest)
        self.run = pathlib.Path(run)

    def verify(self, query, response):
        if (self.run / "metrics.jsonl").exists() and not (self.run / "killed").exists():
            (self.run / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().verify(query, response)


gymnasium.register("Doubling-v0", entry_point=Doubling)
gymnasium.register("Deadly-v0", entry_point=Deadly)
"""

TWO_STEPS = [
    "environment.id=doubling:Doubling-v0",
    "environment.data=null",
    "evaluation.data=null",
    "evaluation.samples=2",
    "evaluation.k=[1]",
    "evaluation.limit=2",
    "evaluation.interval=0",
    "run.steps=2",
    "run.name=job",
    "training.queries_per_step=3",
    "training.group_size=4",
    "env_runners.max_response_tokens=16",
]

Submit = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="package")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This checkout's code, with what piles up in one: earlier runs, an environment, caches."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in UPLOADED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    (folder / "doubling.py").write_text(TASK)
    for heap in ("runs/old/metrics.jsonl", ".venv/bin/python", "algorithms/__pycache__/a.pyc", ".mypy_cache/b"):
        (folder / heap).parent.mkdir(parents=True, exist_ok=True)
        (folder / heap).write_bytes(os.urandom(1000))
    return folder


@pytest.fixture(scope="package")
def head() -> Iterator[RayNode]:
    """A cluster of one node, with one CPU to give away."""
    node = start_node(cpus=1)
    try:
        yield node
    finally:
        node.stop()


@pytest.fixture
def second_node(head: RayNode) -> Iterator[RayNode]:
    """A node with four CPUs that joins the cluster."""
    node = start_node(cpus=4, head=head)
    try:
        yield node
    finally:
        node.stop()


@pytest.fixture
def submit(head: RayNode, checkout: Path) -> Submit:
    """Submits a run of two steps with the README's command."""

    def run(*settings: str) -> subprocess.CompletedProcess[str]:
        command = ["ray", "job", "submit", "--working-dir", ".", "--", "python", "-m", "algorithms.r3_grpo"]
        environment = surroundings() | {"RAY_API_SERVER_ADDRESS": head.dashboard}
        return subprocess.run(
            [*command, *TWO_STEPS, *settings],
            cwd=checkout,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )

    return run
