"""Configurations from YAML files and dotted overrides; every mistake is one line that names its place."""

import contextlib
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from algorithms.config.base import PLUGIN_SETTINGS, BaseConfig
from algorithms.config.errors import ConfigError, no_such_section, shown
from algorithms.config.files import Layer, configs_folder, file_layers
from algorithms.config.other_libraries import explain_other_name, explain_other_sections
from algorithms.config.plain_yaml import check_cost, check_values
from algorithms.config.rllib_names import our_name
from algorithms.config.schema import Settings, nested, takes_text, unknown_key
from algorithms.config.secrets import References, references
from algorithms.config.sections import RunSettings
from algorithms.utils.files import user_path

ConfigT = TypeVar("ConfigT", bound=BaseConfig)

DEFAULT_NAME = "quickstart.yaml"
MOST_OF_A_NAME = 160  # characters, so that the time of the start fits behind


@dataclass(frozen=True)
class Override:
    """A parsed override; `entry` is the path within a setting that is a mapping, as in `columns.problem`."""

    section: str
    key: str
    entry: tuple[str, ...]
    value: Any
    references: References = field(default_factory=dict)


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
        path: a YAML file or several. None or none: the shipped quickstart, which is about the embedded model, or
            nothing but defaults where an override names another model.
        overrides: settings by their dotted names.
        config_class: the algorithm's configuration.

    Returns:
        The configuration, checked across settings, and section `run`, whose name is filled in.

    Raises:
        ConfigError: one line that names the file or `section.key`, and the fix.
    """
    paths = [path] if isinstance(path, str | Path) else list(path or [])
    files = [user_path(given) for given in paths]
    if not files and not _names_a_model(overrides):
        files = [configs_folder() / DEFAULT_NAME]
    layers = file_layers(*files)
    if not paths and any(text.startswith("environment.id=") for text in overrides):
        layers = [_without_task(layer) for layer in layers]
    config = config_class()
    dropped = _name_methods(config, layers, overrides)
    elsewhere = (config_class.sections_elsewhere() | dropped) - config.sections.keys()
    _note_skipped(config, files, layers, elsewhere - dropped)
    run = _apply_layers(config, RunSettings(), layers, elsewhere)
    run = _apply_overrides(config, run, overrides, elsewhere)
    config.measured.run_steps = run.steps
    config.check_settings()
    if run.name is None:
        stems = "-".join(file.stem for file in files)[:MOST_OF_A_NAME] or _model_name(config)
        run = run.changed("run", {"name": f"{stems}-{time.strftime('%Y%m%d-%H%M%S')}"})
    config.debugging(seed=run.seed)
    return config, run


def _note_skipped(config: BaseConfig, files: Sequence[Path], layers: Sequence[Layer], elsewhere: Set[str]) -> None:
    """Tell on stderr which sections of other algorithms the files have."""
    given = dict.fromkeys(section for layer in layers for section in layer.sections)
    skipped = [section for section in given if section in elsewhere]
    # An evaluation of a run skips what only training has: nobody who names the run expects otherwise.
    named = {file.resolve() for file in files}
    expected = any(_is_of_a_run(layer, config) and layer.file.resolve() in named for layer in layers)
    if skipped and not expected:
        names = ", ".join(str(file) for file in files)
        print(
            f"note: {names}: {_algorithm(config)} skips settings that it does not have: {', '.join(skipped)}",
            file=sys.stderr,
        )


def _apply_layers(config: BaseConfig, run: RunSettings, layers: Sequence[Layer], elsewhere: Set[str]) -> RunSettings:
    """Apply what files say to `config`; returns section `run`."""
    for layer in layers:
        if "benchmarks" in layer.sections and "benchmarks" not in config.sections:
            fix = f"python -m algorithms.evaluate --config {layer.file}"
            raise ConfigError(f"{layer.file}: benchmarks: belongs to an evaluation, not to training; fix: {fix}")
        own = elsewhere | (layer.sections.keys() - known_sections(config) if _is_of_a_run(layer, config) else set())
        sections = {section: values for section, values in layer.sections.items() if section not in own}
        try:
            run = _apply(config, run, sections)
        except ConfigError as error:
            raise ConfigError(f"{layer.file}: {error}") from None
        config.refer(layer.references)
    return run


def _apply_overrides(
    config: BaseConfig, run: RunSettings, overrides: Sequence[str], elsewhere: Set[str]
) -> RunSettings:
    """Apply `section.key=value` to `config`; returns section `run`."""
    for text in overrides:
        if (section := text.partition(".")[0]) in elsewhere:
            raise ConfigError(
                f"{text.partition('=')[0]}: {_algorithm(config)} has no section {section}; {_owner(section)}"
            )
        override = parse_override(text, known_sections(config))
        config.refer({(override.section, *path): texts for path, texts in override.references.items()})
        before = {"run": run.model_dump(), **config.to_sections()}
        run = _apply(config, run, {override.section: {override.key: _overridden(before, override)}})
    return run


def _names_a_model(overrides: Sequence[str]) -> bool:
    """Return whether an override names a model of the user's, which the quickstart's settings are not made for."""
    models = [text.partition("=")[2] for text in overrides if text.startswith("rl_module.model=")]
    return bool(models) and not models[-1].startswith("embedded:")


def _model_name(config: BaseConfig) -> str:
    """Return the model's name as part of a folder's."""
    name = config.rl_module_settings.model.rstrip("/").rpartition("/")[2]
    return re.sub(r"[^\w.+=-]+", "-", name).strip("-.")[:MOST_OF_A_NAME] or "run"


def _algorithm(config: BaseConfig) -> str:
    return type(config).__name__.removesuffix("Config")


def _without_task(layer: Layer) -> Layer:
    """The quickstart's problems and texts belong to its own environment, not to one that the user names."""
    sections = {section: values for section, values in layer.sections.items() if section != "environment"}
    if "evaluation" in sections:
        sections["evaluation"] = {key: value for key, value in sections["evaluation"].items() if key != "data"}
    return replace(layer, sections=sections)


def known_sections(config: BaseConfig) -> dict[str, type[Settings]]:
    """Return the sections that a file for this configuration may have."""
    return {"run": RunSettings, **config.sections}


def _is_of_a_run(layer: Layer, config: BaseConfig) -> bool:
    """Return whether an evaluation reads the run's own file, which may have sections of methods that it named."""
    return not config.TRAINS and layer.algorithm is not None


def _name_methods(config: BaseConfig, layers: Sequence[Layer], overrides: Sequence[str]) -> set[str]:
    """Set the settings of section `training` that name methods first: they have sections of their own.

    Returns:
        Sections of methods that a file named and a later one, or an override, does not.
    """
    named: list[dict[str, Any]] = []
    for layer in layers:
        training = layer.sections.get("training")
        if isinstance(training, Mapping):
            named.append({key: training[key] for key in PLUGIN_SETTINGS if key in training})
    for text in overrides:
        if text.startswith(tuple(f"training.{key}=" for key in PLUGIN_SETTINGS)):
            override = parse_override(text, config.sections)
            named.append({override.key: override.value})
    final = {key: value for each in named for key, value in each.items()}
    config.apply({"training": final})
    dropped: set[str] = set()
    for each in named:
        with contextlib.suppress(ConfigError):  # what is not used need not be there
            dropped |= type(config)().apply({"training": each}).sections.keys()
    return dropped - config.sections.keys()


def _owner(section: str) -> str:
    if section in ("replay", "reflection", "ranking"):
        return "R3GRPO has"
    if section == "sft":
        return "python -m algorithms.sft has"
    return f"fix: use the method that has it, such as training.query_sampler={section}"


def _apply(config: BaseConfig, run: RunSettings, sections: Mapping[str, Any]) -> RunSettings:
    known = known_sections(config)
    _refuse_other_sections(sections, known)
    for section, values in sections.items():
        if section == "training" and isinstance(values, Mapping):  # `_name_methods` has set these
            values = {key: value for key, value in values.items() if key not in PLUGIN_SETTINGS}
        if section not in known:
            raise no_such_section(str(section), str(section), known, explain_other_name(str(section)))
        if section == "run":
            if not isinstance(values, Mapping | None):
                raise ConfigError(f"run: {shown(values)} is not a mapping; fix: write run: {{key: value}}")
            run = run.changed("run", values or {})
        else:
            config.apply({section: values})
    return run


def _refuse_other_sections(sections: Mapping[str, Any], known: Mapping[str, type[Settings]]) -> None:
    """Refuse sections of another library's file together, and its settings within a section that is ours as well."""
    others = {section: values for section, values in sections.items() if section not in known}
    nested = {section: values for section, values in others.items() if isinstance(values, Mapping)}
    if nested and (ending := explain_other_sections(nested)):
        raise ConfigError(f"{', '.join(nested)}: no such section; {ending}")
    for section, values in sections.items():
        if section not in others and isinstance(values, Mapping):
            fields = known[section].model_fields
            deep = {key: entry for key, entry in values.items() if key not in fields and isinstance(entry, Mapping)}
            if deep and (ending := explain_other_sections({section: deep})):
                raise ConfigError(f"{section}.{next(iter(deep))}: no such setting; {ending}")


def _overridden(sections: Mapping[str, Any], override: Override) -> Any:
    """Return the value of the overridden setting; an override of one entry of a mapping keeps the others."""
    if not override.entry:
        return override.value
    whole = OmegaConf.create(sections[override.section][override.key])
    OmegaConf.update(whole, ".".join(override.entry), override.value, merge=False, force_add=True)
    return OmegaConf.to_container(whole)


_NULL = ("", "null", "~")


def parse_override(text: str, sections: Mapping[str, type[Settings]]) -> Override:
    """Read `section.key=value`.

    The value of a text setting is taken as it is, whatever it looks like (`environment.data=123`); all others
    are read as YAML.

    Raises:
        ConfigError: not of this form, an unknown section or key, or a value that is no YAML.
    """
    name, equals, raw = text.partition("=")
    section, *path = name.strip().split(".")
    if not equals:
        raise ConfigError(f"{shown(text)}: not an override; fix: write section.key=value")
    if any("\ud800" <= character <= "\udfff" for character in text):  # how Python holds what it cannot decode
        encoding = sys.getfilesystemencoding()
        fix = f"fix: {encoding} text, or set PYTHONUTF8=1 and write UTF-8"
        raise ConfigError(f"{shown(text)}: holds bytes that are no {encoding} text; {fix}")
    if section not in sections:
        owners = [f"{owner}.{section}" for owner, model in sections.items() if section in model.model_fields]
        ending = f"did you mean {owners[0]}?" if owners and not path else explain_other_name(name)
        raise no_such_section(name, section, sections, ending)
    if not path:
        raise ConfigError(f"{name}: is a section; fix: write {section}.key=value")
    key, *entry = path
    field = sections[section].model_fields.get(our_name(section, key))
    if field is None:
        raise unknown_key(section, key, sections)
    within = nested(field)
    if entry and within and entry[0] not in within.model_fields:
        raise unknown_key(f"{section}.{key}", entry[0], {f"{section}.{key}": within})
    if entry and not within and get_origin(field.annotation) is not dict:
        raise ConfigError(f"{name}: {section}.{key} is not a mapping; fix: write {section}.{key}=value")
    if takes_text(field):
        return Override(section, our_name(section, key), (), _text(name, raw))
    if entry and not within and get_args(field.annotation)[1] is str:
        return Override(section, key, tuple(entry), _text(name, raw) or "")
    value, found = _from_yaml(name, raw)
    key = our_name(section, key)
    return Override(
        section, key, tuple(entry), value, {(key, *entry, *path[1:]): texts for path, texts in found.items()}
    )


def as_override(name: str, value: object) -> str:
    """Return the override that gives `section.key` this value."""
    return f"{name}={json.dumps(value, default=str)}"


def _text(name: str, raw: str) -> str | None:
    """Return text as it stands; null or nothing for none; quotes around all of it for text that looks like null."""
    if raw in _NULL:
        return None
    if len(raw) > 1 and raw[0] == raw[-1] and raw[0] in "\"'":
        value, _ = _from_yaml(name, raw)
        return value if isinstance(value, str) else raw
    return raw


def _from_yaml(name: str, raw: str) -> tuple[Any, References]:
    """Return a value, and where its text came from environment variables."""
    try:
        check_cost(raw)
        # OmegaConf's reading of YAML takes 1e-6 for a number; plain PyYAML does not.
        read = OmegaConf.from_dotlist([f"value={raw}"])
        check_values(OmegaConf.to_container(read))
        parsed = OmegaConf.to_container(read, resolve=True)
        found = references(read)
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, RecursionError) as error:
        reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise ConfigError(f"{name}: {shown(raw)} cannot be read: {reason}") from None
    value = parsed["value"] if isinstance(parsed, dict) else None
    return value, found
