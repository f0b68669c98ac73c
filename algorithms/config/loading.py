"""Configurations as YAML files and dotted overrides; every mistake is one line that says where it is."""

import io
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from algorithms.config.base import PLUGIN_SETTINGS, BaseConfig
from algorithms.config.errors import ConfigError, did_you_mean, nearest, shown
from algorithms.config.overrides import Override, parse_override
from algorithms.config.schema import Settings
from algorithms.config.sections import RunSettings

ConfigT = TypeVar("ConfigT", bound=BaseConfig)

DEFAULT_NAME = "quickstart.yaml"
MOST_OF_A_NAME = 160  # characters, so that the time of the start fits behind


@dataclass(frozen=True)
class Layer:
    """What one file says, without its base.

    Args:
        sections: settings by section; a setting of a later layer replaces that of an earlier one.
    """

    file: Path
    sections: Mapping[str, Any]


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
    config, run = config_class(), RunSettings()
    config.apply({"training": _named_methods(layers, overrides, config.sections)})
    elsewhere = config_class.sections_elsewhere() - config.sections.keys()
    given = dict.fromkeys(section for layer in layers for section in layer.sections)
    skipped = [section for section in given if section in elsewhere]
    # An evaluation of a run skips what only training has: nobody who names the run expects otherwise.
    expected = not config_class.TRAINS and any(algorithm_of(file) for file in files)
    if skipped and not expected:
        names = ", ".join(str(file) for file in files)
        print(f"note: {names}: {algorithm} skips what it does not have: {', '.join(skipped)}", file=sys.stderr)
    if not config_class.TRAINS:  # sections of methods that the run's own file names
        elsewhere |= {section for section in given if section not in known_sections(config)}
    for layer in layers:
        if "benchmarks" in layer.sections and "benchmarks" not in config.sections:
            fix = f"python -m algorithms.evaluate --config {layer.file}"
            raise ConfigError(f"{layer.file}: benchmarks: belongs to an evaluation, not to training; fix: {fix}")
        sections = {section: values for section, values in layer.sections.items() if section not in elsewhere}
        try:
            run = _apply(config, run, sections)
        except ConfigError as error:
            raise ConfigError(f"{layer.file}: {error}") from None
    for text in overrides:
        if (section := text.partition(".")[0]) in elsewhere:
            raise ConfigError(f"{text.partition('=')[0]}: {algorithm} has no section {section}; {_owner(section)}")
        override = parse_override(text, known_sections(config))
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


def to_yaml(config: BaseConfig, run: RunSettings, *, algorithm: str) -> str:
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


def known_sections(config: BaseConfig) -> dict[str, type[Settings]]:
    """Return the sections that a file for this configuration may have."""
    return {"run": RunSettings, **config.sections}


def _named_methods(
    layers: Sequence[Layer], overrides: Sequence[str], sections: Mapping[str, type[Settings]]
) -> dict[str, Any]:
    """Return the settings of section `training` that name methods: their sections have to be known first."""
    named: dict[str, Any] = {}
    for layer in layers:
        training = layer.sections.get("training")
        if isinstance(training, Mapping):
            named |= {key: training[key] for key in PLUGIN_SETTINGS if key in training}
    for text in overrides:
        if text.startswith(tuple(f"training.{key}=" for key in PLUGIN_SETTINGS)):
            override = parse_override(text, sections)
            named[override.key] = override.value
    return named


def _owner(section: str) -> str:
    if section in ("replay", "reflection", "ranking"):
        return "R3GRPO has"
    return f"fix: name what has it, such as training.query_sampler={section}"


def _apply(config: BaseConfig, run: RunSettings, sections: Mapping[str, Any]) -> RunSettings:
    known = known_sections(config)
    for section, values in sorted(sections.items(), key=lambda item: item[0] != "training"):
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
    whole = OmegaConf.create(sections[override.section][override.key])
    OmegaConf.update(whole, ".".join(override.entry), override.value, merge=False, force_add=True)
    return OmegaConf.to_container(whole)


def _escaped(value: Any) -> Any:
    """The same data with `${`, which would be an interpolation, escaped."""
    if isinstance(value, dict):
        return {key: _escaped(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(entry) for entry in value]
    return value.replace("${", "\\${") if isinstance(value, str) else value


BASE = "base"
# A run directory's file says here what trained with it.
ALGORITHM = "algorithm"
_NO_SETTINGS = (yaml.YAMLError, OmegaConfBaseException, UnicodeError, RecursionError)


def file_layers(*files: Path) -> list[Layer]:
    """The files and what they are based on, in the order in which they apply: the bases of a file first, then it.

    `base` names one file or several, relative to the file that names them; a base may have a base of its own. A file
    that is reached twice applies once, where it comes first.

    Raises:
        ConfigError: a file that cannot be read, a base that is no text, or files that are each other's base.
    """
    distinct: dict[Path, Layer] = {}
    for layer in (layer for file in files for layer in _layers(file, ())):
        distinct.setdefault(layer.file.resolve(), layer)
    return list(distinct.values())


def _layers(file: Path, above: tuple[Path, ...]) -> list[Layer]:
    if file.resolve() in above:
        raise ConfigError(f"{file}: is its own base; fix: take it out of base")
    sections = read_sections(file)
    sections.pop(ALGORITHM, None)
    layers: list[Layer] = []
    for name in _bases(file, sections.pop(BASE, [])):
        base = file.parent / Path(name).expanduser()
        try:
            layers += _layers(base, (*above, file.resolve()))
        except ConfigError as error:
            if base.is_file():
                raise
            raise ConfigError(f"{file}: base: {error}") from None
    return [*layers, Layer(file, sections)]


def _bases(file: Path, named: object) -> list[str]:
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"{file}: base: {shown(named)} is not a file or a list of files; fix: base: other.yaml")
    return names


def read_sections(file: Path) -> dict[str, Any]:
    """A file's sections as they stand, interpolations resolved.

    Raises:
        ConfigError: one line that names the file, the place and the fix.
    """
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


def configs_folder() -> Path:
    """Return the folder of the shipped YAML files.

    A wheel carries them inside the package; a checkout, installed or not, keeps them at its root.

    Raises:
        FileNotFoundError: neither place has them.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "configs", package.parent / "configs"):
        if any(folder.glob("*.yaml")):
            return folder
    raise FileNotFoundError(
        f"no configurations in {package / 'configs'} or {package.parent / 'configs'}: reinstall r3-grpo"
    )


def training_files() -> list[Path]:
    """The shipped files that say how to train; those called `eval_*` are for `python -m algorithms.evaluate`."""
    return sorted(file for file in configs_folder().glob("*.yaml") if not file.name.startswith("eval_"))


def evaluation_files() -> list[Path]:
    """The shipped files for `python -m algorithms.evaluate`."""
    return sorted(configs_folder().glob("eval_*.yaml"))
