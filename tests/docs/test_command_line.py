"""The page of the commands is what they print about themselves."""

import subprocess
import sys

import pytest

from website.command_line import COMMANDS

from .pages import DOCS, ROOT, helped, text_of


def plain(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.slow
@pytest.mark.parametrize("module", [module for module, *_ in COMMANDS])
def test_the_page_has_each_commands_help(module):
    again = "run python -m website.command_line > docs/reference/command-line.md"
    assert plain(helped(module)) in plain(text_of(DOCS / "reference" / "command-line.md")), again


def test_a_reader_who_closes_the_help_early_sees_no_traceback():
    command = f"{sys.executable} -m algorithms.r3_grpo --help | head -n 1"
    process = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert process.stdout.startswith("usage: ") and process.stderr == ""
