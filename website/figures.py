"""Make the pages' figures and printed output: `make figures`, or `python -m website.figures [NAME …]`.

A page marks the place: `<!-- figure NAME -->` … `<!-- end -->`. The result of the figure's function replaces the text
between the marks; pictures are replaced, too. `cheap` figures come from committed records, and a test checks that they
are current. The others run something, and carry commit and machine.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from algorithms.utils.files import write_text
from algorithms.utils.provenance import code_commit
from website.browser import NAMES, Browser, find_browser

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
STEPS_SHOWN = (1, 40, 80)


@dataclass(frozen=True)
class Figure:
    """A part of a page that a script makes.

    Args:
        name: in the page's marks.
        page: below the project's folder.
        make: returns the Markdown, and may write pictures.
        cheap: whether it is made from committed records, in seconds and always the same.
    """

    name: str
    page: str
    make: Callable[[], str]
    cheap: bool = True

    def marked(self) -> re.Pattern[str]:
        """Match the part of the page, its content as group 2."""
        return re.compile(rf"(<!-- figure {re.escape(self.name)} -->\n)(.*?)(<!-- end -->)", re.DOTALL)

    def put(self) -> None:
        """Replace the part of the page.

        Raises:
            ValueError: the page does not have it exactly once.
        """
        page = ROOT / self.page
        content = self.make()
        text, count = self.marked().subn(lambda match: f"{match[1]}{content}\n{match[3]}", page.read_text("utf-8"))
        if count != 1:
            raise ValueError(f"{self.page}: has {count} parts <!-- figure {self.name} -->; it should have one")
        write_text(page, text)


def controls() -> str:
    """Return the table of R³ beside its controls."""
    from benchmarks.evidence import controls

    return controls.table()


def controls_in_short() -> str:
    """Return the README's table of evidence, and draw its panel."""
    from benchmarks.evidence import controls

    controls.draw(IMAGES / "controls-tokens.png")
    return controls.short_table()


def quickstart() -> str:
    """Run the quickstart, return what it printed, and take its curves."""
    made_by = stamp()
    with tempfile.TemporaryDirectory() as folder:
        printed = _run(folder, "algorithms.r3_grpo")
        (run,) = Path(folder, "runs").iterdir()
        shutil.copy(run / "curves.png", IMAGES / "quickstart.png")
    return f"```\n{shortened(printed).rstrip()}\n```\n\n{made_by}"


def report() -> str:
    """Train R³ and GRPO for twenty steps, and take pictures of their report: its curves, and a group token by token."""
    program = find_browser()
    if program is None:
        raise RuntimeError(f"no browser: none of {', '.join(NAMES)} is there; fix: make browser")
    made_by = stamp()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("r3_grpo", "grpo"):
            words = ["--config", str(ROOT / "configs" / "quickstart.yaml"), f"run.name={name}", "run.steps=20"]
            _run(folder, f"algorithms.{name}", *words)
        _run(folder, "algorithms.report", "runs/r3_grpo", "runs/grpo", "--out", "report.html", "--trajectories", "9000")
        browser = Browser(program, folder + "/profile")
        try:
            browser.open(Path(folder, "report.html"), width=1120, height=840)
            browser.screenshot(IMAGES / "report.png")
            browser.open(Path(folder, "report.html"), width=1120, height=760, fragment="#group=0.20.0")
            browser.value("document.querySelector('.group').scrollIntoView()")
            browser.screenshot(IMAGES / "report-tokens.png")
        finally:
            browser.close()
    return (
        "![Curves of R³ and GRPO](../images/report.png)\n\n"
        f"![A group, its tokens colored by entropy](../images/report-tokens.png)\n\n{made_by}"
    )


def _run(folder: str, module: str, *words: str) -> str:
    """Run a command of the library in a folder; returns what it printed."""
    surroundings = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "110"}
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=surroundings, check=True
    )
    return done.stdout


def shortened(printed: str) -> str:
    """Cut a run's output: without its start, most of its steps, and its files."""
    lines: list[str] = []
    for line in printed[printed.index("step 1/") :].splitlines():
        if line.startswith("  "):
            break
        step = re.match(r"step (\d+)/", line)
        if step is None or int(step[1]) in STEPS_SHOWN:
            lines.append(line)
        elif lines[-1] != "…":
            lines.append("…")
    return "\n".join(lines)


def stamp() -> str:
    """Return a figure's commit, machine and date."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = re.sub(r"\((?:R|TM)\)", "", models[0]) if models else "unknown processor"
    commit, dirty, _ = (code_commit() or "unknown").partition("-dirty")
    return f"*Commit {commit[:7]}{dirty}, {os.cpu_count()} cores ({processor}), {date.today():%Y-%m-%d}.*"


FIGURES = (
    Figure("quickstart", "README.md", quickstart, cheap=False),
    Figure("report", "docs/guides/report.md", report, cheap=False),
    Figure("controls-in-short", "README.md", controls_in_short),
    Figure("controls", "docs/results/evidence.md", controls),
)


def main() -> None:
    """Make the named figures, or all."""
    by_name = {figure.name: figure for figure in FIGURES}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(by_name)}; default: all")
    names = parser.parse_args().names or list(by_name)
    if unknown := sorted(set(names) - set(by_name)):
        parser.error(f"there is no {', '.join(unknown)}; fix: of {', '.join(by_name)}")
    for name in names:
        print(f"{name}: making it for {by_name[name].page}", flush=True)
        by_name[name].put()


if __name__ == "__main__":
    main()
