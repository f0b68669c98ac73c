"""Functions of the user that a method's setting names."""

from collections.abc import Callable
from typing import Any

from algorithms.config.errors import ConfigError
from algorithms.utils.errors import RunError
from r3env.named_functions import FunctionLoadError, check_names, describe, load_function


def load_named(setting: str, name: str) -> Callable[..., Any]:
    """Return the function that a setting names; what it raises ends the run in one line that names the setting.

    Args:
        setting: `section.key`, for errors.
        name: `module:function`, or `path/to/file.py:function`.

    Raises:
        ConfigError: there is no such function.
    """
    try:
        function = load_function(*check_names(name, "module:function"))
    except (ValueError, FunctionLoadError) as error:
        raise ConfigError(f"{setting}: {error}") from error

    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:  # anything can go wrong in a function that somebody else wrote
            raise RunError(f"{setting}: {name} failed: {describe(error)}; fix: let it answer any response") from error

    return call
