"""Figures of what commands print: the quickstart and the report, with commit and machine."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection
from datetime import date
from functools import cache
from pathlib import Path

from algorithms.train.curves import draw_accuracy
from algorithms.train.run_directory import RunDirectory
from algorithms.utils.provenance import code_commit, machine
from website.browser import NAMES, Browser, find_browser

ROOT = Path(__file__).parent.parent
COLUMNS = 110


def quickstart(images: Path) -> str:
    """Run the quickstart, return what it printed, and draw its accuracy."""
    with tempfile.TemporaryDirectory() as folder:
        printed = run(folder, "-m", "algorithms.r3_grpo")
        (trained,) = Path(folder, "runs").iterdir()
        made = RunDirectory.open(trained)
        draw_accuracy(made.read_metrics(), json.loads(made.summary_file.read_text("utf-8")), images / "quickstart.png")
    _, _, steps = printed.partition("step 1/")
    return f"{fenced(shortened('step 1/' + steps, shown={1, 40, 80}))}\n\n{stamp()}"


def report(images: Path) -> str:
    """Train R³ and GRPO for twenty steps, and take pictures of their report: its curves, and a group token by token."""
    program = find_browser()
    if program is None:
        raise RuntimeError(f"no browser: none of {', '.join(NAMES)} is there; fix: make browser")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("r3_grpo", "grpo"):
            words = ["--config", str(ROOT / "configs" / "quickstart.yaml"), f"run.name={name}", "run.steps=20"]
            run(folder, "-m", f"algorithms.{name}", *words)
        words = ["--out", "report.html", "--trajectories", "9000"]
        run(folder, "-m", "algorithms.report", "runs/r3_grpo", "runs/grpo", *words)
        browser = Browser(program, folder + "/profile")
        try:
            browser.open(Path(folder, "report.html"), width=1120, height=840)
            browser.screenshot(images / "report.png")
            browser.open(Path(folder, "report.html"), width=1120, height=760, fragment="#group=0.20.0")
            browser.value("document.querySelector('.group').scrollIntoView()")
            browser.screenshot(images / "report-tokens.png")
        finally:
            browser.close()
    return (
        "![Curves of R³ and GRPO](../images/report.png)\n\n"
        f"![A group, its tokens colored by entropy](../images/report-tokens.png)\n\n{stamp()}"
    )


def run(folder: str | Path, *words: str, code: int = 0) -> str:
    """Run Python in a folder; returns what it printed.

    Args:
        folder: the working directory.
        words: after `python`.
        code: the exit code that is expected.

    Raises:
        RuntimeError: it ended with another one.
    """
    # As a reader runs it: with another number of threads sums round differently, and so do results.
    own = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    surroundings = own | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "COLUMNS": str(COLUMNS)}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=surroundings,
    )
    if done.returncode != code:
        raise RuntimeError(f"python {' '.join(words)} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def shortened(printed: str, shown: Collection[int]) -> str:
    """Cut a run's output after its table: without most of its steps, and its files.

    Args:
        printed: what the run printed.
        shown: numbers of the steps whose lines stay; `…` stands for others.
    """
    lines: list[str] = []
    for line in printed.splitlines():
        if line.startswith("  "):
            break
        step = re.match(r"step (\d+)/", line)
        if step is None or int(step[1]) in shown:
            lines.append(line)
        elif lines[-1:] != ["…"]:
            lines.append("…")
    return "\n".join(lines)


def fenced(text: str) -> str:
    """Return text as a code block of Markdown."""
    return f"```\n{text.strip()}\n```"


@cache
def stamp() -> str:
    """Return commit, machine and date of this process's figures, as they were at the first call."""
    commit, dirty, _ = (code_commit() or "unknown").partition("-dirty")
    return f"*Commit {commit[:7]}{dirty}, {machine()}, {date.today():%Y-%m-%d}.*"
