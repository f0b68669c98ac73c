"""Configurations as YAML files and dotted overrides; every mistake is one line that says where it is."""

import io
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from algorithms.configuration.errors import did_you_mean, nearest, shown
from algorithms.configuration.folder import configs_folder
from algorithms.configuration.overrides import Override, parse_override
from algorithms.configuration.schema import Settings
from algorithms.configuration.settings import RunSettings
from algorithms.grpo.config import ConfigError, GRPOConfig

ConfigT = TypeVar("ConfigT", bound=GRPOConfig)

DEFAULT_NAME = "quickstart.yaml"
_NO_SETTINGS = (yaml.YAMLError, OmegaConfBaseException, UnicodeError, RecursionError)


def load(path: str | Path | None, overrides: Sequence[str], config_class: type[ConfigT]) -> tuple[ConfigT, RunSettings]:
    """Read a configuration file, with overrides `section.key=value` that win over it.

    A file may be shared between algorithms: sections of a mechanism that this one does not have are skipped
    with a note on stderr. As an override they are an error. `algorithm`, which a run directory's file has
    beside its sections, is not read. Where an override names another environment than the quickstart's, its
    problems and texts are left out.

    Args:
        path: a YAML file; None for the shipped quickstart.
        overrides: settings by their dotted names.
        config_class: the algorithm's configuration.

    Returns:
        The configuration, checked across settings, and section `run`, whose name is filled in.

    Raises:
        ConfigError: one line that names the file or `section.key`, and the fix.
    """
    file = configs_folder() / DEFAULT_NAME if path is None else Path(path).expanduser()
    sections = _read(file)
    sections.pop("algorithm", None)
    if path is None and any(text.startswith("environment.id=") for text in overrides):
        _leave_task_out(sections)
    algorithm = config_class.__name__.removesuffix("Config")
    elsewhere = _sections_of_mechanisms() - set(config_class.SECTIONS)
    if skipped := [section for section in sections if section in elsewhere]:
        print(f"note: {file}: {algorithm} skips what it does not have: {', '.join(skipped)}", file=sys.stderr)
    sections = {section: values for section, values in sections.items() if section not in elsewhere}
    config, run = config_class(), RunSettings()
    try:
        run = _apply(config, run, sections)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    for text in overrides:
        if (section := text.partition(".")[0]) in elsewhere:
            raise ConfigError(f"{text.partition('=')[0]}: {algorithm} has no section {section}; R3GRPO has")
        override = parse_override(text, known_sections(config_class))
        before = {"run": run.model_dump(), **config.to_sections()}
        run = _apply(config, run, {override.section: {override.key: _overridden(before, override)}})
    config.check_settings()
    if run.name is None:
        run = run.changed("run", {"name": f"{file.stem}-{time.strftime('%Y%m%d-%H%M%S')}"})
    config.debugging(seed=run.seed)
    return config, run


def algorithm_of(file: Path) -> str | None:
    """What a run directory's file says was trained with it, None if it does not say.

    Raises:
        ConfigError: the file cannot be read.
    """
    name = _read(file).get("algorithm")
    return name if isinstance(name, str) else None


def _leave_task_out(sections: dict[str, Any]) -> None:
    """The quickstart's problems and texts belong to its own environment, not to one that the user names."""
    sections.pop("environment", None)
    sections.get("evaluation", {}).pop("data", None)


def to_yaml(config: GRPOConfig, run: RunSettings, *, algorithm: str) -> str:
    """The whole configuration as a file that `load` reads back to the same settings.

    Args:
        config: the configuration.
        run: section `run`.
        algorithm: what trained with it, for whoever reads the file.

    Raises:
        ConfigError: a setting (an option of the environment, or of the engine) is not plain data.
    """
    sections = {"algorithm": algorithm, "run": run.model_dump(), **config.to_sections()}
    try:
        return yaml.dump(_escaped(sections), Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    except yaml.YAMLError as error:
        raise ConfigError(f"environment.options or env_runners.vllm: not plain data: {error}") from None


class _Dumper(yaml.SafeDumper):
    """Quotes text with line breaks: PyYAML's other styles do not give every kind of them back as it was."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _Dumper.represent_text)


def known_sections(config_class: type[GRPOConfig]) -> dict[str, type[Settings]]:
    """The sections that a file for this algorithm may have."""
    return {"run": RunSettings, **config_class.SECTIONS}


def _sections_of_mechanisms() -> set[str]:
    # Imported here: the base package is not built on the algorithms that extend it.
    from algorithms.r3_grpo.settings import SECTIONS

    return set(SECTIONS)


def _apply(config: GRPOConfig, run: RunSettings, sections: Mapping[str, Any]) -> RunSettings:
    known = known_sections(type(config))
    for section, values in sections.items():
        if section not in known:
            raise ConfigError(f"{section}: no such section; {did_you_mean(str(section), known)}")
        if section == "run":
            if not isinstance(values, Mapping | None):
                raise ConfigError(f"run: {shown(values)} is not a mapping; fix: write run: {{key: value}}")
            run = run.changed("run", values or {})
        else:
            config.apply({section: values})
    return run


def _overridden(sections: Mapping[str, Any], override: Override) -> Any:
    """The value of the overridden setting; an override of one entry of a mapping keeps the others."""
    if not override.entry:
        return override.value
    whole = dict(sections[override.section][override.key])
    place = whole
    for name in override.entry[:-1]:
        inner = place.get(name)
        place[name] = dict(inner) if isinstance(inner, Mapping) else {}
        place = place[name]
    place[override.entry[-1]] = override.value
    return whole


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except IsADirectoryError:
        raise ConfigError(f"{file}: is a folder; fix: name a YAML file, such as {file / 'config.yaml'}") from None
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{file}: no such file; {_nearest_file(file)}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 (byte {error.start}); fix: save the file as UTF-8") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read ({error})") from None
    try:
        content = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)), resolve=True)
    except OSError:  # OmegaConf's word for a file that holds one number or the like
        content = None
    except _NO_SETTINGS as error:
        raise ConfigError(f"{file}: not a valid configuration: {_place(error)}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: holds no sections; fix: write them, such as training: {{lr: 1e-6}}")
    return {str(section): values for section, values in content.items()}


def _place(error: Exception) -> str:
    """The first line of a parser's message, with the line and column where it has them."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else problem


def _nearest_file(file: Path) -> str:
    shipped = {entry.name: entry for entry in configs_folder().glob("*.yaml")}
    if file.name in shipped:
        return f"did you mean {shipped[file.name]}?"
    if not file.parent.is_dir():
        return f"there is no folder {file.parent}"
    beside = nearest(file.name, (entry.name for entry in file.parent.iterdir()))
    match = file.parent / beside if beside else shipped.get(nearest(file.name, shipped) or "")
    return f"did you mean {match}?" if match else f"the shipped ones are in {configs_folder()}"


def _escaped(value: Any) -> Any:
    """The same data with `${`, which would be an interpolation, escaped."""
    if isinstance(value, dict):
        return {key: _escaped(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(entry) for entry in value]
    return value.replace("${", "\\${") if isinstance(value, str) else value
