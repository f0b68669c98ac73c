"""Documentation pages as tests read them."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from algorithms.config.schema import Settings
from algorithms.config.sections import SECTIONS, BenchmarksSettings, RunSettings
from algorithms.finetuning.config import SFTSettings
from algorithms.grpo.registry import all_plugins
from website import command_line, texts

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md")))

_CELL = re.compile(r"(?<!\\)\|")
# Heads of table columns that hold names of other libraries' settings, some of which look like ours.
OTHER_LIBRARIES = frozenset({"TRL", "verl"})
# How a block of commands begins that are another commit's.
OLDER = "# In a clone at commit "


# Imports once what takes each command seconds, then is each command in a fork; a NUL ends what it printed.
_COMMANDS = """
import os, runpy, sys
import algorithms.train.main  # before Ray: it prepares the process
import ray.rllib, transformers

for line in sys.stdin:
    if not (child := os.fork()):
        sys.argv = ["", "--help"]
        runpy.run_module(line.strip(), run_name="__main__", alter_sys=True)
        os._exit(1)  # a command ends its process
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{line.strip()} --help failed")
    print(end="\\0", flush=True)
"""


@cache
def _commands() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _COMMANDS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | command_line.PLAIN,
    )


@cache
def helped(module: str) -> str:
    """What `python -m MODULE --help` prints, without the list of settings."""
    process = _commands()
    assert process.stdin and process.stdout
    process.stdin.write(f"{module}\n")
    process.stdin.flush()
    printed = ""
    while not printed.endswith("\0"):
        printed += (character := process.stdout.read(1))
        assert character, f"python -m {module} --help ended with {printed}"
    return command_line.without_settings(printed[:-1])


def sections() -> dict[str, type[Settings]]:
    """Every section of settings: of training, of the library's methods, of evaluations and of a supervised start."""
    methods = {kind.section: kind.settings_class for kind in all_plugins()}
    return {"run": RunSettings, **SECTIONS, **methods, "benchmarks": BenchmarksSettings, "sft": SFTSettings}


def text_of(page: Path) -> str:
    """A page's text."""
    return page.read_text(encoding="utf-8")


def fenced(page: Path, *languages: str) -> list[str]:
    """The code blocks of these languages, in order."""
    return texts.fences(text_of(page), *languages)


def inline_code(page: Path) -> list[str]:
    """What stands in backticks outside code blocks."""
    return texts.code_spans(text_of(page))


def own_code(page: Path) -> list[str]:
    """What stands in backticks outside code blocks, and outside columns of other libraries' names."""
    return texts.code_spans("\n".join(_own_lines(texts.without_fences(text_of(page)))))


def _own_lines(text: str) -> Iterator[str]:
    theirs: set[int] = set()
    above = ""
    for line in text.splitlines():
        cells = _CELL.split(line)
        if not line.startswith("|"):
            theirs = set()
        elif not above.startswith("|"):
            theirs = {number for number, cell in enumerate(cells) if cell.strip() in OTHER_LIBRARIES}
        yield "|".join(cell for number, cell in enumerate(cells) if number not in theirs)
        above = line


def links(page: Path) -> list[str]:
    """Targets of the page's links outside code blocks."""
    return texts.links(text_of(page))


def command_lines(page: Path) -> list[list[str]]:
    """The words of every `python -m …` in the page's shell blocks, continued lines joined and comments cut off.

    A block that is for a clone at another commit is none of this code's.
    """
    blocks = [block for block in fenced(page, "", "sh", "bash", "console") if not block.startswith(OLDER)]
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    commands = [line.partition(" #")[0].partition("python -m ")[2].split() for line in lines if "python -m " in line]
    return [words for words in commands if words]
