"""Functions that settings name: found, or one line that says why not."""

import pytest

from algorithms.config.errors import ConfigError
from algorithms.methods.functions import load_named
from algorithms.utils.errors import RunError


def test_a_named_function_answers_and_its_errors_are_one_line(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def half(n):\n    return 12 // n\n")
    half = load_named("section.key", f"{file}:half")
    assert half(3) == 4
    with pytest.raises(RunError, match=r"^section\.key: .*mine\.py:half failed: ZeroDivisionError.*; fix: [^\n]*$"):
        half(0)


@pytest.mark.parametrize("name", ["half", "json:half", "no_such_module_there:half"])
def test_one_that_is_not_there_is_an_error_of_configuration(name):
    with pytest.raises(ConfigError, match=r"^section\.key: [^\n]*$"):
        load_named("section.key", name)
