"""The page of the commands is what they print about themselves."""

import pytest

from website.command_line import COMMANDS

from .pages import DOCS, helped, text_of


def plain(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.slow
@pytest.mark.parametrize("module", [module for module, *_ in COMMANDS])
def test_the_page_has_each_commands_help(module):
    again = "run python -m website.command_line > docs/reference/command-line.md"
    assert plain(helped(module)) in plain(text_of(DOCS / "reference" / "command-line.md")), again
