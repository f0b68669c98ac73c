"""Checksums of a checkpoint's files: what was written is what is read, or it is said which file differs."""

import hashlib
import json
from pathlib import Path

MANIFEST = "manifest.json"


def write_manifest(folder: Path) -> None:
    """List every file below `folder` with its size and SHA-256."""
    files = {str(path.relative_to(folder)): _fingerprint(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    (folder / MANIFEST).write_text(json.dumps(files, indent=1), encoding="utf-8")


def damage(folder: Path) -> str | None:
    """What is wrong with a folder that `write_manifest` listed, in words that name the file; None: nothing."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        expected = {name: (entry["bytes"], entry["sha256"]) for name, entry in files.items()}
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} cannot be read"
    for name, (size, digest) in expected.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
        if _fingerprint(path)["sha256"] != digest:
            return f"{name} has changed since it was written"
    return None


def _fingerprint(path: Path) -> dict[str, int | str]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
