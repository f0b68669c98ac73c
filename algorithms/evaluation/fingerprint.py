"""Digest problems and model files, as a path stays the same when its contents change."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from algorithms.config.machine import RLModuleSettings
from algorithms.models.names import resolve_model
from r3env.core import Query

_MODEL_FILES = (".json", ".safetensors", ".model", ".txt", ".jinja", ".py")
_WHOLE = 16 * 2**20  # bytes up to which a file is read from end to end
_BLOCKS, _BLOCK = 64, 2**16


def digest_problems(queries: Mapping[str, Query], uids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return how many problems a benchmark has, and a digest of their texts, answers and levels, by benchmark.

    Args:
        queries: by uid, with the benchmark's name before it.
        uids: the problems that are sampled, in their order.
    """
    counts: dict[str, int] = {}
    digests: dict[str, Any] = {}
    for uid in uids:
        name, query = uid.partition("/")[0], queries[uid]
        counts[name] = counts.get(name, 0) + 1
        turns = (query.turns,) if query.turns else ()
        text = repr((uid, query.problem, query.answer, query.level, *turns))
        digests.setdefault(name, hashlib.sha256()).update(text.encode("utf-8", "surrogatepass"))
    return {name: {"problems": count, "digest": digests[name].hexdigest()[:32]} for name, count in counts.items()}


def digest_model(settings: RLModuleSettings) -> str | None:
    """Return a digest of the model's files, or the commit of a Hub model; None where it is not on this machine.

    Of large files only some blocks are read: training moves weights everywhere.

    Args:
        settings: the `rl_module` section.
    """
    folder = Path(resolve_model(settings.model))
    if not folder.is_dir():
        return _cached_commit(str(folder), settings.revision)
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.suffix in _MODEL_FILES and file.is_file():
            digest.update(f"{file.name}\0{file.stat().st_size}\0".encode("utf-8", "surrogateescape"))
            _add(digest, file)
    return digest.hexdigest()[:32]


def _cached_commit(repo: str, revision: str | None) -> str | None:
    import huggingface_hub

    try:
        file = huggingface_hub.try_to_load_from_cache(repo, "config.json", revision=revision)
    except ValueError:  # no name that the Hub could have
        return None
    return Path(file).parent.name if isinstance(file, str) else None


def _add(digest: Any, path: Path) -> None:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _WHOLE:
            digest.update(file.read())
            return
        for block in range(_BLOCKS):
            file.seek(block * (size - _BLOCK) // (_BLOCKS - 1))
            digest.update(file.read(_BLOCK))
