"""Configurations as YAML files: a file may name others as its base and hold only the differences."""

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from algorithms.config.errors import ConfigError, close_match, shown
from algorithms.config.plain_yaml import MOST_CHARACTERS, check_cost, check_values
from algorithms.config.secrets import References, references
from algorithms.utils.files import user_path

if TYPE_CHECKING:  # reading a file needs no Ray
    from algorithms.config.base import BaseConfig
    from algorithms.config.sections import RunSettings


@dataclass(frozen=True)
class Layer:
    """The content of one file, without its base.

    Args:
        sections: settings by section; a setting of a later layer replaces that of an earlier one.
        algorithm: what trained with it, where it is a run directory's file that says so.
        references: where its text came from environment variables.
    """

    file: Path
    sections: Mapping[str, Any]
    algorithm: str | None = None
    references: References = field(default_factory=dict)


# A run directory's file says here what trained with it.
ALGORITHM = "algorithm"


def algorithm_of(file: Path) -> str | None:
    """Return what a run directory's file says was trained with it; None if it does not say.

    Raises:
        ConfigError: the file cannot be read.
    """
    return _text_or_none(read_sections(file).get(ALGORITHM))


def _text_or_none(name: object) -> str | None:
    return name if isinstance(name, str) else None


def to_yaml(config: "BaseConfig", run: "RunSettings", *, algorithm: str) -> str:
    """Return the whole configuration as a file that `load` reads back to the same settings.

    Text that came from an environment variable is written as it was, `${oc.env:NAME}`: the value may be a secret.

    Args:
        config: the configuration.
        run: section `run`.
        algorithm: what trained with it, for whoever reads the file.

    Raises:
        ConfigError: a setting (an option of the environment, or of the engine) is not plain data.
    """
    sections = {ALGORITHM: algorithm, "run": run.model_dump(), **config.to_sections()}
    try:
        return yaml.dump(_escaped(sections, config.references), Dumper=_Dumper, sort_keys=False, allow_unicode=True)
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


_NOTHING = object()


def _escaped(value: Any, known: References, path: tuple[str, ...] = ()) -> Any:
    """Return the same data with `${`, which would be an interpolation, escaped, but for references that are known."""
    resolved, reference = known.get(path, (_NOTHING, ""))
    if resolved == (list(value) if isinstance(value, tuple) else value):
        return reference
    if isinstance(value, dict):
        return {key: _escaped(entry, known, (*path, str(key))) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(entry, known, (*path, str(number))) for number, entry in enumerate(value)]
    return value.replace("${", "\\${") if isinstance(value, str) else value


BASE = "base"

_NO_SETTINGS = (yaml.YAMLError, OmegaConfBaseException, ValueError, RecursionError)


def file_layers(*files: Path) -> list[Layer]:
    """Return the files and their bases in the order in which they apply: the bases of a file first, then the file.

    `base` names one file or several, relative to the file that names them; a base may have a base of its own. A file
    that is reached twice applies once, where it comes first.

    Raises:
        ConfigError: a file that cannot be read, a base that is no text, or files that are each other's base.
    """
    distinct: dict[Path, Layer] = {}
    for layer in (layer for file in files for layer in _layers(file, ())):
        distinct.setdefault(layer.file.resolve(), layer)
    return list(distinct.values())


def _layers(file: Path, above: tuple[str, ...]) -> list[Layer]:
    real = os.path.realpath(file)  # of a link to itself, too
    if real in above:
        raise ConfigError(f"{file}: is its own base; fix: take it out of base")
    sections, found = _read(file)
    algorithm = _text_or_none(sections.get(ALGORITHM))
    if not isinstance(sections.get(ALGORITHM), Mapping):  # which another library's file has there
        sections.pop(ALGORITHM, None)
    layers: list[Layer] = []
    for name in _bases(file, sections.pop(BASE, [])):
        base = file.parent / user_path(name)
        try:
            layers += _layers(base, (*above, real))
        except ConfigError as error:
            if os.path.isfile(base):
                raise
            raise ConfigError(f"{file}: base: {error}") from None
    return [*layers, Layer(file, sections, algorithm, found)]


def _bases(file: Path, named: object) -> list[str]:
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"{file}: base: {shown(named)} is not a file or a list of files; fix: base: other.yaml")
    return names


def read_sections(file: Path) -> dict[str, Any]:
    """Return a file's sections as written, with interpolations resolved.

    Raises:
        ConfigError: one line that names the file, the place and the fix.
    """
    return _read(file)[0]


def _read(file: Path) -> tuple[dict[str, Any], References]:
    try:
        with file.open(encoding="utf-8") as stream:
            text = stream.read(MOST_CHARACTERS + 1)  # of a device there is no end
    except IsADirectoryError:
        raise ConfigError(f"{file}: is a folder; fix: name a YAML file, such as {file / 'config.yaml'}") from None
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{file}: no such file; {_nearest_file(file)}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 (byte {error.start}); fix: save the file as UTF-8") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read ({error})") from None
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(f"{file}: has more than {MOST_CHARACTERS:,} characters; fix: name a file of settings")
    try:
        check_cost(text)
        loaded = OmegaConf.load(io.StringIO(text))
        check_values(OmegaConf.to_container(loaded))
        content = OmegaConf.to_container(loaded, resolve=True)
        found = references(loaded)
    except OSError:  # OmegaConf's word for a file that holds one number or the like
        content = None
    except _NO_SETTINGS as error:
        raise ConfigError(f"{file}: not a valid configuration: {_place(error)}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: holds no sections; fix: write them, such as training: {{lr: 1e-6}}")
    sections = {str(section): values for section, values in content.items()}
    if secret := next((path[0] for path in found if len(path) == 1), None):
        fix = "name its settings in the file, and the variable behind each"
        raise ConfigError(f"{file}: {secret}: the whole section comes from an environment variable; fix: {fix}")
    return sections, found


def _place(error: Exception) -> str:
    """Return the first line of a parser's message, with the line and column where it has them."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else problem


def _nearest_file(file: Path) -> str:
    shipped = {entry.name: entry for entry in configs_folder().glob("*.yaml")}
    if file.name in shipped:
        return f"did you mean {shipped[file.name]}?"
    if not file.parent.is_dir():
        return f"there is no folder {file.parent}"
    beside = close_match(file.name, (entry.name for entry in file.parent.iterdir()))
    match = file.parent / beside if beside else shipped.get(close_match(file.name, shipped) or "")
    return f"did you mean {match}?" if match else f"the shipped files are in {configs_folder()}"


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
