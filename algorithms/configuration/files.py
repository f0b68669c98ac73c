"""Configurations as YAML files and dotted overrides; every mistake is one line that says where it is."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from algorithms.configuration.errors import did_you_mean, shown
from algorithms.configuration.folder import configs_folder
from algorithms.configuration.layers import Layer, file_layers, read_sections
from algorithms.configuration.overrides import Override, parse_override
from algorithms.configuration.schema import Settings
from algorithms.configuration.settings import RunSettings
from algorithms.grpo.config import ConfigError, GRPOConfig

ConfigT = TypeVar("ConfigT", bound=GRPOConfig)

DEFAULT_NAME = "quickstart.yaml"
MOST_OF_A_NAME = 160  # characters, so that the time of the start fits behind


def load(
    path: str | Path | Sequence[str | Path] | None, overrides: Sequence[str], config_class: type[ConfigT]
) -> tuple[ConfigT, RunSettings]:
    """Read configuration files, each of which wins over those before it, and overrides `section.key=value` over all.

    A file may begin with `base: other.yaml`, or a list of such: it then holds only what differs from them.
    A file may be shared between algorithms: sections of a mechanism that this one does not have are skipped
    with a note on stderr, without one where an evaluation reads a run's own file. As an override they are an
    error. `algorithm`, which a run directory's file has beside its sections, is not read. Where an override names
    another environment than the quickstart's, its problems and texts are left out.

    Args:
        path: a YAML file or several; None or none for the shipped quickstart.
        overrides: settings by their dotted names.
        config_class: the algorithm's configuration.

    Returns:
        The configuration, checked across settings, and section `run`, whose name is filled in.

    Raises:
        ConfigError: one line that names the file or `section.key`, and the fix.
    """
    paths = [path] if isinstance(path, str | Path) else list(path or [])
    files = [Path(given).expanduser() for given in paths] or [configs_folder() / DEFAULT_NAME]
    layers = file_layers(*files)
    if not paths and any(text.startswith("environment.id=") for text in overrides):
        layers = [_without_task(layer) for layer in layers]
    algorithm = config_class.__name__.removesuffix("Config")
    elsewhere = _sections_of_mechanisms() - set(config_class.SECTIONS)
    given = dict.fromkeys(section for layer in layers for section in layer.sections)
    skipped = [section for section in given if section in elsewhere]
    # An evaluation of a run skips what only training has: nobody who names the run expects otherwise.
    expected = "benchmarks" in config_class.SECTIONS and any(algorithm_of(file) for file in files)
    if skipped and not expected:
        names = ", ".join(str(file) for file in files)
        print(f"note: {names}: {algorithm} skips what it does not have: {', '.join(skipped)}", file=sys.stderr)
    config, run = config_class(), RunSettings()
    for layer in layers:
        if "benchmarks" in layer.sections and "benchmarks" not in config_class.SECTIONS:
            fix = f"python -m algorithms.evaluate --config {layer.file}"
            raise ConfigError(f"{layer.file}: benchmarks: is asked by an evaluation, not trained on; fix: {fix}")
        sections = {section: values for section, values in layer.sections.items() if section not in elsewhere}
        try:
            run = _apply(config, run, sections)
        except ConfigError as error:
            raise ConfigError(f"{layer.file}: {error}") from None
    for text in overrides:
        if (section := text.partition(".")[0]) in elsewhere:
            raise ConfigError(f"{text.partition('=')[0]}: {algorithm} has no section {section}; R3GRPO has")
        override = parse_override(text, known_sections(config_class))
        before = {"run": run.model_dump(), **config.to_sections()}
        run = _apply(config, run, {override.section: {override.key: _overridden(before, override)}})
    config.check_settings()
    if run.name is None:
        stems = "-".join(file.stem for file in files)[:MOST_OF_A_NAME]
        run = run.changed("run", {"name": f"{stems}-{time.strftime('%Y%m%d-%H%M%S')}"})
    config.debugging(seed=run.seed)
    return config, run


def algorithm_of(file: Path) -> str | None:
    """What a run directory's file says was trained with it, None if it does not say.

    Raises:
        ConfigError: the file cannot be read.
    """
    name = read_sections(file).get("algorithm")
    return name if isinstance(name, str) else None


def _without_task(layer: Layer) -> Layer:
    """The quickstart's problems and texts belong to its own environment, not to one that the user names."""
    sections = {section: values for section, values in layer.sections.items() if section != "environment"}
    if "evaluation" in sections:
        sections["evaluation"] = {key: value for key, value in sections["evaluation"].items() if key != "data"}
    return Layer(layer.file, sections)


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


# OmegaConf reads more forms of numbers than PyYAML, which therefore does not quote them: 0E0.
_BEGINS_A_NUMBER = tuple("+-.0123456789")


class _Dumper(yaml.SafeDumper):
    """Quotes text with line breaks: PyYAML's other styles do not give every kind of them back as it was."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        plain = text.isprintable() and text[:1] not in _BEGINS_A_NUMBER
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


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


def _escaped(value: Any) -> Any:
    """The same data with `${`, which would be an interpolation, escaped."""
    if isinstance(value, dict):
        return {key: _escaped(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(entry) for entry in value]
    return value.replace("${", "\\${") if isinstance(value, str) else value
