"""Commands as an odd machine starts them: each a real process."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SMALL = [
    "run.steps=2",
    "run.checkpoint_every=1",
    "training.queries_per_step=2",
    "training.group_size=2",
    "env_runners.num_env_runners=1",
    "evaluation.samples=1",
    "evaluation.k=[1]",
    "evaluation.limit=2",
]
CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def start() -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Run a shell line in which "$@" is the command; variables are added, or taken away where they are None."""

    def run(line: str, *command: str, **variables: str | None) -> subprocess.CompletedProcess[bytes]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("RAY_", "PYTHON", "LC_"))}
        changed = kept | {"PYTHONPATH": str(CHECKOUT)} | variables
        return subprocess.run(
            ["bash", "-c", f"set -o pipefail; {line}", "bash", sys.executable, *command],
            env={name: text for name, text in changed.items() if text is not None},
            cwd=CHECKOUT,
            capture_output=True,
            timeout=600,
        )

    return run


def assert_complete(run: Path, steps: int = 2) -> None:
    """All files of a run that ended well."""
    assert len((run / "metrics.jsonl").read_bytes().splitlines()) == steps
    assert (run / "summary.json").is_file() and (run / "curves.png").is_file()
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step_000001", "step_000002"]
