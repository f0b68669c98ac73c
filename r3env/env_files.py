"""Environments by the place of their code: `path/to/folder:Class` or `path/to/file.py:Class`.

A folder is one as the Hub has them, downloaded: a Python file, and perhaps the requirements of its imports.
"""

from pathlib import Path
from typing import Any

from r3env.core import VerifiableEnv
from r3env.named_functions import FunctionLoadError, load_named

_USUAL_FILE = "env.py"


def is_path(env_id: str) -> bool:
    """Return whether an id names a class by the place of its code; `module:Id-v0` has no slash before its colon."""
    place, colon, _ = env_id.rpartition(":")
    return bool(colon) and ("/" in place or place.endswith(".py"))


def load_env_class(env_id: str) -> type[VerifiableEnv]:
    """Import the class of `path:Class`.

    Raises:
        ValueError: there is none, or it is no `VerifiableEnv`; one line without the id.
    """
    place, _, name = env_id.rpartition(":")
    file = _code_of(Path(place).expanduser().resolve(), name)
    try:
        found: Any = load_named(f"{file}:{name}")
    except FunctionLoadError as error:
        requirements, fix = file.parent / "requirements.txt", ""
        if isinstance(error.__context__, ModuleNotFoundError) and requirements.is_file():
            fix = f"; fix: pip install -r {requirements}"
        raise ValueError(str(error).removeprefix(f"{file}:{name}: ") + fix) from error
    if not (isinstance(found, type) and issubclass(found, VerifiableEnv)):
        raise ValueError(f"{name} is not a subclass of r3env.core.VerifiableEnv; fix: subclass it")
    return found


def _code_of(place: Path, name: str) -> Path:
    """Return a folder's Python file, the usual one if it has several; of a file, itself."""
    if not place.is_dir():
        if place.is_file():
            return place
        raise ValueError(f"there is no {place}; fix: the path of a folder or a Python file, from the current folder")
    files = sorted(file.name for file in place.glob("*.py"))
    if _USUAL_FILE in files:
        return place / _USUAL_FILE
    if len(files) == 1:
        return place / files[0]
    if not files:
        raise ValueError(f"{place} has no Python file; fix: a folder that has one")
    raise ValueError(f"{place} has several Python files and no {_USUAL_FILE}; fix: name one, {place / files[0]}:{name}")
