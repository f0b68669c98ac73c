"""Withhold what the configuration of a run folder may not decide: it comes with a model, perhaps somebody else's.

A file that `--config` names is trusted like a script. One that only lies in the folder of `--model` is not: a setting
that can import, unpickle or run anything else than this library counts only if the user repeats it.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from algorithms.config.errors import ConfigError, shown
from algorithms.config.files import Layer, file_layers
from algorithms.config.loading import as_override, known_sections, parse_override
from algorithms.config.rllib_names import our_name
from algorithms.config.schema import Affects, settings_that_affect
from algorithms.evaluate.config import EvaluateConfig

# Those with a module run its code, and some that come with r3env (GEM's, SkyRL's) run what a policy writes.
_OWN_ENVIRONMENTS = "r3env/"
# What names code that r3env's own environments run; a mixture hands its own on to its parts.
_FUNCTIONS = ("options.reward", "options.agent", "options.tools", "options.mcp_servers")


def withhold_options(files: Sequence[str]) -> list[str]:
    """Return overrides that set the withheld settings to the values of the user's own files, or to the default."""
    return [as_override(name, value) for name, value in {**_withheld(), **_stated(files)}.items()]


def withheld_notes(run_file: Path, config: EvaluateConfig) -> list[str]:
    """Return a line for each setting that the run's file has and `config` has not."""
    defaults, lines = _withheld(), []
    for name, value in _stated([str(run_file)]).items():
        section, _, key = name.partition(".")
        if value not in (None, defaults[name]) and value != config.to_sections()[section][key]:
            lines.append(
                f"note: {run_file}: {name} is not taken from a run folder, as it may run code that comes with it; "
                f"if you trust it, repeat {shlex.quote(as_override(name, value))}"
            )
    return lines


def check_environments(run_file: Path, config: EvaluateConfig, files: Sequence[str], overrides: Sequence[str]) -> None:
    """Refuse a run's environments that are not r3env's own, and functions that they call; imports nothing.

    Args:
        run_file: the run's.
        config: all that was read.
        files: the user's own.
        overrides: the user's own.

    Raises:
        ConfigError: one line that names the setting, and the override that allows it.
    """
    described = config.environment_settings.model_dump()
    said = [one for section in _sections_of_the_user(files, overrides) for one in _environments("environment", section)]
    repeated = {key: [values.get(key) for _, values in said] for key in ("id", *_FUNCTIONS)}
    for place, values in _environments("environment", described):
        name = values.get("id")
        own = isinstance(name, str) and name.startswith(_OWN_ENVIRONMENTS) and ":" not in name
        if name is not None and not own and name not in repeated["id"]:
            raise ConfigError(
                f"{run_file}: {place}.id: {shown(name)} is not one of {_OWN_ENVIRONMENTS}…, and may run code of its "
                f"own; {_repeat(f'{place}.id', name)}"
            )
        for key in _FUNCTIONS if own else ():
            function = values.get(key)
            if function is not None and function not in repeated[key]:
                where = f"{place}.{key}"
                fix = _repeat(where, function)
                raise ConfigError(f"{run_file}: {where}: {shown(function)} names code to run; {fix}")


def _repeat(name: str, value: Any) -> str:
    override = f"{name}={value}" if isinstance(value, str) else as_override(name, value)
    return f"fix: if you trust it, repeat {shlex.quote(override)} on the command line"


def _layers(files: Sequence[str]) -> list[Layer]:
    return file_layers(*(Path(file).expanduser() for file in files))


def _withheld() -> dict[str, Any]:
    """Return the defaults of the settings that a run folder may not decide."""
    return settings_that_affect(known_sections(EvaluateConfig()), Affects.CODE)


def _stated(files: Sequence[str]) -> dict[str, Any]:
    """Return the withheld settings that files hold."""
    pairs = [name.split(".") for name in _withheld()]
    return {
        f"{section}.{key}": values[key]
        for layer in _layers(files)
        for section, key in pairs
        if isinstance(values := layer.sections.get(section), Mapping) and key in values
    }


def _sections_of_the_user(files: Sequence[str], overrides: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yield what the user's files and overrides say of the environment, each by itself."""
    for layer in _layers(files):
        section = layer.sections.get("environment")
        if isinstance(section, Mapping):
            yield {our_name("environment", str(key)): value for key, value in section.items()}
    for text in overrides:
        override = parse_override(text, known_sections(EvaluateConfig()))
        value = override.value
        for name in reversed(override.entry):
            value = {name: value}
        if override.section == "environment":
            yield {override.key: value}


def _environments(place: str, described: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the id and the functions of an environment and those of a mixture's parts, with its dotted name."""
    if not isinstance(described, Mapping):
        return
    options = described.get("options")
    options = options if isinstance(options, Mapping) else {}
    yield place, {"id": described.get("id"), **{key: options.get(key.partition(".")[2]) for key in _FUNCTIONS}}
    parts = options.get("environments")
    for part, value in parts.items() if isinstance(parts, Mapping) else ():
        yield from _environments(f"{place}.options.environments.{part}", value)
