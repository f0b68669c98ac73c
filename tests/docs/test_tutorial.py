"""The tutorial's own task trains, and its snippet reads what a run writes."""

import json
import os
import subprocess
import sys

import pytest

from .pages import DOCS, ROOT, command_lines, fenced

PAGE = DOCS / "start/tutorial.md"
SMALL = (
    "run.steps=1",
    "training.queries_per_step=1",
    "training.group_size=2",
    "evaluation.interval=0",
    "evaluation.samples=1",
    "evaluation.k=[1]",
    "evaluation.limit=8",
    "run.checkpoint_every=0",
    "run.log_conversations=0",
)


@pytest.mark.slow
def test_the_task_of_the_tutorial_trains_and_its_answers_can_be_read(tmp_path):
    look, task = fenced(PAGE, "python")
    (tmp_path / "totals.py").write_text(task, encoding="utf-8")
    (command,) = [words for words in command_lines(PAGE) if "environment.id=totals:Totals-v0" in words]

    def python(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            check=True,
            timeout=600,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    # The run that the snippet looks at is called `first`; the later of two values of a setting counts.
    python("-m", *command, *SMALL, "run.name=first")
    prompt, *answers = python("-c", look.replace("000020", "000001")).splitlines()
    assert prompt.count("+") == 1 and len(answers) == 2
    summary = json.loads((tmp_path / "runs" / "first" / "summary.json").read_text(encoding="utf-8"))
    assert summary["eval"]["before"]["pass@1"] > 0, "the task must be able to reward the model that it trains"
