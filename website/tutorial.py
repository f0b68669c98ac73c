"""Figures of docs/start/tutorial.md: its commands run in order, and the parts of their output that it shows."""

import re
import tempfile
from functools import cache
from pathlib import Path

from website.printed import ROOT, fenced, run, shortened, stamp
from website.texts import fences

PAGE = ROOT / "docs" / "start" / "tutorial.md"
PARTS = ("stamp", "train", "look", "evaluate", "compare", "error", "task")
_HELD_OUT = "evaluations/runs-first-checkpoints-step_000020-model-heldout"


def shown(part: str) -> str:
    """Return a part of `PARTS`; the commands run once for all parts."""
    return stamp() if part == "stamp" else fenced(_outputs()[part])


@cache
def _outputs() -> dict[str, str]:
    """Run the page's commands in a folder of their own; returns part → what it shows."""
    look, task = fences(PAGE.read_text(encoding="utf-8"), "python")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "totals.py").write_text(task, encoding="utf-8")
        trained = run(folder, "-m", "algorithms.r3_grpo", "run.steps=20", "run.name=first", "evaluation.interval=10")
        answers = run(folder, "-c", look)
        evaluate = ("-m", "algorithms.evaluate")
        evaluated = run(folder, *evaluate, "--model", "runs/first", "--samples", "16")
        untrained = ("--config", "runs/first/config.yaml", "--model", "embedded:tiny", "--samples", "16")
        run(folder, *evaluate, *untrained)
        compared = run(folder, *evaluate, "--compare", "evaluations/embedded-tiny-heldout", _HELD_OUT)
        impossible = run(folder, "-m", "algorithms.r3_grpo", "training.minibatches=3", code=2)
        own = ("environment.id=totals:Totals-v0", "environment.data=train", "evaluation.data=heldout")
        totals = run(folder, "-m", "algorithms.r3_grpo", *own, "run.steps=10", "run.name=totals")
    return {
        "train": training(trained),
        "look": first_of_each_verdict(answers),
        "evaluate": f"…\n{between(evaluated, r'^┃ .*problems × ', r'^└')}\n…",
        "compare": lines_with(compared, r"│ (pass|maj|mean|truncated).* points|│ mean tokens"),
        "error": lines_with(impossible, r"^error: "),
        "task": lines_with(totals, r"│ pass@|^Held-out pass@1"),
    }


def training(printed: str) -> str:
    """Cut a run's output: its folder, its first, tenth and last step, its table and its curves."""
    start, _, steps = printed.partition("step 1/")
    kept = lines_with(start, r"^run directory: |^evaluating before")
    return "\n".join([kept, shortened(f"step 1/{steps}", shown={1, 10, 20}), between(steps, "^  curves ", ""), "…"])


def first_of_each_verdict(printed: str) -> str:
    """Keep the prompt and the first answer of each verdict; `…` stands for the others."""
    prompt, *answers = printed.splitlines()
    verdicts = [answer.split()[1] for answer in answers]
    return "\n".join([prompt, _elided(answers, [verdict not in verdicts[:n] for n, verdict in enumerate(verdicts)])])


def lines_with(printed: str, pattern: str) -> str:
    """Keep the lines that a pattern is found in; `…` stands for those between, before and after."""
    lines = printed.rstrip().splitlines()
    return _elided(lines, [re.search(pattern, line) is not None for line in lines])


def between(printed: str, first: str, last: str) -> str:
    """Return the lines from the first that one pattern is found in to the next that the other is found in.

    Raises:
        StopIteration: there is no such line.
    """
    lines = printed.splitlines()
    begin = next(n for n, line in enumerate(lines) if re.search(first, line))
    end = next(n for n, line in enumerate(lines[begin:], begin) if re.search(last, line))
    return "\n".join(lines[begin : end + 1])


def _elided(lines: list[str], kept: list[bool]) -> str:
    found: list[str] = []
    for line, keep in zip(lines, kept, strict=True):
        if keep:
            found.append(line)
        elif found[-1:] != ["…"]:
            found.append("…")
    return "\n".join(found)
