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
    except OSError as error:
        return f"{MANIFEST} cannot be read ({error.strerror})"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} cannot be read"
    for name, (size, digest) in expected.items():
        try:
            trouble = _difference(folder / name, size, digest)
        except OSError as error:
            trouble = f"cannot be read ({error.strerror})"
        if trouble is not None:
            return f"{name} {trouble}"
    return None


def _difference(path: Path, size: int, digest: str) -> str | None:
    if not path.is_file():
        return "is missing"
    if path.stat().st_size != size:
        return f"has {path.stat().st_size} bytes instead of {size}"
    if _fingerprint(path)["sha256"] != digest:
        return "has changed since it was written"
    return None


def _fingerprint(path: Path) -> dict[str, int | str]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
