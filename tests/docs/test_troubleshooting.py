"""docs/troubleshooting.md has every warning and note, every error that ends a run, every setting that is refused."""

import re

from .messages import errors_that_end_a_run, notes, settings_refused, source_files, warnings
from .pages import DOCS, fenced, inline_code, text_of

PAGE = DOCS / "troubleshooting.md"


def quoted() -> set[str]:
    """The messages in the page's blocks without a language."""
    return {line for block in fenced(PAGE, "") for line in block.splitlines()}


def test_every_warning_and_note_is_on_the_page_and_none_else():
    assert quoted() == warnings() | notes()


def test_every_error_that_ends_a_run_is_on_the_page():
    assert errors_that_end_a_run() <= set(inline_code(PAGE))


def test_every_setting_that_is_refused_is_on_the_page():
    assert settings_refused() <= set(inline_code(PAGE))


def test_the_errors_of_a_run_are_worded_as_in_the_code():
    code = " ".join(re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8")) for path in source_files())
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text_of(PAGE), re.MULTILINE)
    assert len(rows) >= 5
    for name, message in rows:
        for part in filter(None, (part.strip(" ;:") for part in message.split("…"))):
            assert part in code, f"{name}: {part!r} is not in the code"
