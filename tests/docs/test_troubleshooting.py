"""The page of troubleshooting quotes what the code prints, and has every warning, error and refused setting."""

import re

from .messages import errors_that_end_a_run, fixed_parts, settings_refused, texts, warnings
from .pages import DOCS, fenced, inline_code, text_of

PAGE = DOCS / "operate/troubleshooting.md"


def quoted() -> list[str]:
    """The messages in the page's blocks without a language, and in its tables of errors."""
    blocks = [line for block in fenced(PAGE, "") for line in block.splitlines()]
    errors = re.findall(r"^\| (?:`\w+`|disk full[^|]*) \| ([^|]+) \|", text_of(PAGE), re.MULTILINE)
    (checkpoints,) = re.findall(r"^### Checkpoints.*?\n\n(.*?)\n\n", text_of(PAGE), re.MULTILINE | re.DOTALL)
    resumed = [row.split(" | ")[0].strip("| ") for row in checkpoints.splitlines()[2:]]
    assert min(map(len, (blocks, errors, resumed))) >= 8, "the page has another form than this test reads"
    return [*blocks, *errors, *resumed]


def test_every_message_on_the_page_is_in_the_code():
    assert [(m, part) for m in quoted() for part in fixed_parts(m) if part not in texts()] == []


def test_every_warning_is_on_the_page():
    assert len(warnings()) > 10
    page = text_of(PAGE)
    assert [text for text in warnings() if any(part not in page for part in fixed_parts(text))] == []


def test_every_error_that_ends_a_run_is_on_the_page():
    assert len(errors_that_end_a_run()) > 4
    assert errors_that_end_a_run() <= set(inline_code(PAGE))


def test_every_setting_that_is_refused_is_on_the_page():
    assert len(settings_refused()) > 10
    assert settings_refused() <= set(inline_code(PAGE))
