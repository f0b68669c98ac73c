"""The kinds of runs that a soak takes in turn: what they train, and what of them must be the undisturbed run's."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# What of a disturbed run is compared with the undisturbed one; "files" is what it left alone.
Compared = Literal["numbers", "accuracy", "files"]


@dataclass(frozen=True)
class Kind:
    """A kind of run.

    Args:
        name: in the table.
        task: kinds of the same task share an undisturbed run.
        compared: "numbers": each of them; "accuracy": that after training, within noise. What an agent or a tool
            answers later than a second joins a later batch: of such a run only its files are compared.
        settings: overrides beside the soak's.
        runners: whether it has env runner actors, which faults can strike.
    """

    name: str
    task: str
    compared: Compared
    settings: Sequence[str] = ()
    runners: bool = False


# An epoch, after which reflection begins and rows become longer, is over before a process's memory is judged.
PROBLEMS = 120
_REMOTE = (
    "env_runners.num_env_runners=2",
    "env_runners.timeout_s=60",
    "env_runners.num_cpus_per_env_runner=0.5",
    "learners.num_learners=1",
    "learners.num_cpus_per_learner=0.5",
)
_AGENTS = (
    "environment.id=r3env/Agent-v0",
    "environment.options.agent=examples.two_opinions:solve",
    "environment.instruction=''",
)


def kinds(folder: Path) -> list[Kind]:
    """Make what the kinds train on, in a folder, and list them."""
    base = folder / "calculator"
    subprocess.run([sys.executable, "-m", "examples.calculator", str(base)], check=True, stdout=subprocess.DEVNULL)
    problems = base / "train.jsonl"
    problems.write_text("".join(problems.read_text("utf-8").splitlines(keepends=True)[:PROBLEMS]), "utf-8")
    tools = (
        "environment.id=r3env/Tools-v0",
        "environment.options.tools=[examples.calculator:multiply]",
        f"environment.data={problems}",
        f"evaluation.data={base}/heldout.jsonl",
        "environment.instruction=''",
        "environment.max_turns=3",
        f"rl_module.model={base}",
        "env_runners.max_response_tokens=12",
    )
    return [
        Kind("one process", "sums", "numbers"),
        Kind("two runners, a learner", "sums", "accuracy", _REMOTE, runners=True),
        Kind("tools, one process", "tools", "files", tools),
        Kind("agents over the endpoint, two runners", "agents", "files", (*_AGENTS, *_REMOTE), runners=True),
        Kind("tools, two runners", "tools", "files", (*tools, *_REMOTE), runners=True),
        Kind("agents over the endpoint, one process", "agents", "files", _AGENTS),
    ]
