"""Named tensors in one safetensors file, or in several with an index, as Hugging Face folders have them."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file


def write_tensors(folder: Path, stem: str, buckets: Iterable[dict[str, torch.Tensor]]) -> None:
    """Write `stem.safetensors`, or `stem-00001-of-0000N.safetensors` … and `stem.safetensors.index.json`.

    Args:
        folder: exists.
        stem: `model` for weights that Hugging Face libraries shall find.
        buckets: what goes into each file, held in memory one at a time; none gives one file without tensors.
    """
    files: list[Path] = []
    shard_of: dict[str, int] = {}
    total = 0
    for number, bucket in enumerate(buckets):
        files.append(folder / f"{stem}-{number}.partial")
        save_file({name: tensor.contiguous() for name, tensor in bucket.items()}, files[-1], {"format": "pt"})
        shard_of |= dict.fromkeys(bucket, number)
        total += sum(tensor.nbytes for tensor in bucket.values())
    if not files:
        save_file({}, folder / f"{stem}.safetensors", {"format": "pt"})
    elif len(files) == 1:
        files[0].rename(folder / f"{stem}.safetensors")
    else:
        names = [f"{stem}-{number:05d}-of-{len(files):05d}.safetensors" for number in range(1, len(files) + 1)]
        for file, name in zip(files, names, strict=True):
            file.rename(folder / name)
        index = {"metadata": {"total_size": total}, "weight_map": {name: names[n] for name, n in shard_of.items()}}
        (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index, indent=1), encoding="utf-8")


def read_tensors(folder: Path, stem: str) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the tensors of `write_tensors`, one file at a time.

    Raises:
        OSError, safetensors.SafetensorError: a file is missing or damaged.
    """
    for file in tensor_files(folder, stem):
        yield load_file(file)


def tensor_files(folder: Path, stem: str) -> list[Path]:
    """Return the files that hold the tensors, in order.

    Raises:
        FileNotFoundError: there are none, or the index names one that is missing.
    """
    index = folder / f"{stem}.safetensors.index.json"
    if not index.is_file():
        files = [folder / f"{stem}.safetensors"]
    else:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = [folder / name for name in sorted(set(weight_map.values()))]
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"{file.name} is missing")
    return files


def tensor_names(folder: Path, stem: str) -> set[str]:
    """Return the names of all tensors, by the files' headers alone.

    Raises:
        OSError, safetensors.SafetensorError: as `read_tensors`.
    """
    names: set[str] = set()
    for file in tensor_files(folder, stem):
        with safe_open(file, framework="pt") as opened:
            names |= set(opened.keys())
    return names
